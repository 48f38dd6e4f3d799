-- ARGV: now, incarnation, known_step, version
local incarnation, version = tonumber(ARGV[2]), tonumber(ARGV[4])
local refusal = fence(incarnation, tonumber(ARGV[3]))
if refusal then
  return refusal
end
local published = meta_number('published_version')
if version <= published then
  return {'ok'}
end
for _, step in ipairs(call('ZRANGEBYSCORE', steps_key, '(' .. published, version)) do
  change('meta', 'unpublished_groups', -#groups_of(step))
end
call('HSET', meta_key, 'published_incarnation', incarnation, 'published_version', version)
change('meta', 'watch', 1)
count('published')
flush()
return {'ok'}
