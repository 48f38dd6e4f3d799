-- ARGV: now, incarnation, known_step, step
-- Forgets the oldest entry, one a call, so that a commit of many steps keeps nobody waiting; returns whether
-- there may be more.
local refusal = fence(tonumber(ARGV[2]), tonumber(ARGV[3]))
if refusal then
  return refusal
end
local step, replayed_step = tonumber(ARGV[4]), meta_number('replayed_step')
if step > replayed_step and replayed_step < meta_number('recorded_step') then
  return {'waits_for_replay', step, replayed_step}
end
local first = tonumber(call('ZRANGE', steps_key, 0, 0)[1])
if not first or first > step then
  return {'ok', 0}
end
local ids = groups_of(first)
for _, group_id in ipairs(ids) do
  local group = find(group_id)
  count('trajectories.committed', derived_before[group_id].arrived)
  forget(group)
end
count('committed', #ids)
if first > meta_number('published_version') then
  change('meta', 'unpublished_groups', -#ids)
end
remove_entry(first)
change('meta', 'committed_step', first - meta_number('committed_step'))
flush()
return {'ok', 1}
