-- ARGV: now, incarnation, known_step, step
local refusal = fence(tonumber(ARGV[2]), tonumber(ARGV[3]))
if refusal then
  return refusal
end
local step, committed_step = tonumber(ARGV[4]), totals[T_COMMITTED_STEP]
if step < committed_step then
  return {'forgotten', step, committed_step}
end
local published = totals[T_PUBLISHED_VERSION]
for _, name in ipairs(steps_after(step)) do
  local groups, num_trajectories = groups_of(name), 0
  for _, group in ipairs(groups) do
    num_trajectories = num_trajectories + derived_before[group.id].arrived
    group[STATE] = SETTLED
    save(group)
  end
  count('recorded', -#groups)
  count('trajectories.recorded', -num_trajectories)
  count('trajectories.unrecorded', num_trajectories)
  if tonumber(name) > published then
    add_total(T_UNPUBLISHED_GROUPS, -#groups)
  end
  remove_entry(name)
end
totals[T_RECORDED_STEP] = math.min(totals[T_RECORDED_STEP], step)
totals[T_REPLAYED_STEP] = math.min(totals[T_REPLAYED_STEP], step)
flush()
return {'ok'}
