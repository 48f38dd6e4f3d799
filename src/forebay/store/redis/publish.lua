-- ARGV: now, incarnation, known_step, version
local incarnation, version = tonumber(ARGV[2]), tonumber(ARGV[4])
local refusal = fence(incarnation, tonumber(ARGV[3]))
if refusal then
  return refusal
end
local published = totals[T_PUBLISHED_VERSION]
if version <= published then
  return {'ok'}
end
for _, step in ipairs(call('ZRANGEBYSCORE', steps_key, '(' .. published, version)) do
  add_total(T_UNPUBLISHED_GROUPS, -#ids_of(step))
end
totals[T_PUBLISHED_INCARNATION], totals[T_PUBLISHED_VERSION] = incarnation, version
add_total(T_WATCH, 1)
count('published')
flush()
return {'ok'}
