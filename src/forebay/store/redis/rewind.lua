-- ARGV: now, step, token
-- Returns the incarnation, the last recorded step, and the entries after the step, in order.
local step = tonumber(ARGV[2])

local function entries_after()
  local entries = {}
  for place, name in ipairs(steps_after(step)) do
    entries[place] = call('HGET', entries_key, name)
  end
  return entries
end

local answer = answer_of(ARGV[3])
if answer then
  return {'ok', tonumber(answer), meta_number('recorded_step'), entries_after()}
end
local committed_step, recorded_step = meta_number('committed_step'), meta_number('recorded_step')
local begun, incarnation = meta_number('begun') == 1, meta_number('incarnation')
if step < committed_step then
  return {'forgotten', step, committed_step}
end
if begun and step > recorded_step then
  return {'ahead', step, recorded_step}
end

local version = step
if begun then
  version = math.min(step, meta_number('published_version'))
  incarnation = incarnation + 1
  local forks = cmsgpack.unpack(call('HGET', meta_key, 'forks'))
  forks[#forks + 1] = {incarnation, step}
  call('HSET', meta_key, 'forks', cmsgpack.pack(forks), 'incarnation', incarnation)
  count('rewound')
end
local unpublished_groups, last_step = 0, step
for _, name in ipairs(call('ZRANGE', steps_key, 0, -1)) do
  last_step = math.max(last_step, tonumber(name))
  if tonumber(name) > version then
    unpublished_groups = unpublished_groups + #groups_of(name)
  end
end
call(
  'HSET', meta_key, 'begun', 1, 'published_incarnation', incarnation, 'published_version', version,
  'recorded_step', last_step, 'replayed_step', step, 'unpublished_groups', unpublished_groups
)
change('meta', 'watch', 1)
for _, group_id in ipairs(call('ZRANGE', prefix .. 'order', 0, -1)) do
  local group = find(group_id)
  if group[STATE] == TAKEN then
    group[STATE] = SETTLED
    save(group)
  elseif group[STATE] == OPEN and group[DEADLINE_WALL_S] ~= NONE then
    group[DEADLINE_WALL_S] = now_s + group[DEADLINE_S]
    save(group)
  end
  derived_before[group_id] = nil
end
flush()
keep_answer(ARGV[3], incarnation)
return {'ok', incarnation, last_step, entries_after()}
