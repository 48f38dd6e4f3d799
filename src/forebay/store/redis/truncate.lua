-- ARGV: now, incarnation, known_step, step
local refusal = fence(tonumber(ARGV[2]), tonumber(ARGV[3]))
if refusal then
  return refusal
end
local step, committed_step = tonumber(ARGV[4]), meta_number('committed_step')
if step < committed_step then
  return {'forgotten', step, committed_step}
end
local published = meta_number('published_version')
for _, name in ipairs(steps_after(step)) do
  local ids, num_trajectories = groups_of(name), 0
  for _, group_id in ipairs(ids) do
    local group = find(group_id)
    num_trajectories = num_trajectories + derived_before[group_id].arrived
    group[STATE] = SETTLED
    save(group)
  end
  count('recorded', -#ids)
  count('trajectories.recorded', -num_trajectories)
  count('trajectories.unrecorded', num_trajectories)
  if tonumber(name) > published then
    change('meta', 'unpublished_groups', -#ids)
  end
  remove_entry(name)
end
change('meta', 'recorded_step', math.min(0, step - meta_number('recorded_step')))
change('meta', 'replayed_step', math.min(0, step - meta_number('replayed_step')))
flush()
return {'ok'}
