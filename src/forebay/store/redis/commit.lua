-- ARGV: now, incarnation, known_step, step
-- Forgets the oldest entry, one a call, so that a commit of many steps keeps nobody waiting; returns whether
-- there may be more.
local refusal = fence(tonumber(ARGV[2]), tonumber(ARGV[3]))
if refusal then
  return refusal
end
local step, replayed_step = tonumber(ARGV[4]), totals[T_REPLAYED_STEP]
if step > replayed_step and replayed_step < totals[T_RECORDED_STEP] then
  return {'waits_for_replay', step, replayed_step}
end
local first = tonumber(call('ZRANGE', steps_key, 0, 0)[1])
if not first or first > step then
  return {'ok', 0}
end
local groups = groups_of(first)
for _, group in ipairs(groups) do
  count('trajectories.committed', derived_before[group.id].arrived)
  forget(group)
end
count('committed', #groups)
if first > totals[T_PUBLISHED_VERSION] then
  add_total(T_UNPUBLISHED_GROUPS, -#groups)
end
remove_entry(first)
totals[T_COMMITTED_STEP] = first
flush()
return {'ok', 1}
