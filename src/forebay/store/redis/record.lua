-- ARGV: now, incarnation, known_step, step, retained_capacity_bytes, made_by, digest, entry, groups
local refusal = fence(tonumber(ARGV[2]), tonumber(ARGV[3]))
if refusal then
  return refusal
end
local step, digest, limit = tonumber(ARGV[4]), ARGV[7], tonumber(ARGV[5])
local joined = table.concat(ARGV, '\n', 9)
local recorded_step, replayed_step = totals[T_RECORDED_STEP], totals[T_REPLAYED_STEP]

local made_by, known_digest, known_groups = batch_of(step)
if made_by then
  if known_digest ~= digest or known_groups ~= joined then
    return {'other_batch', step, digest, known_digest}
  end
  if step > replayed_step then
    local following = tonumber(steps_after(replayed_step)[1])
    if step ~= following then
      return {'out_of_order', step, following}
    end
    totals[T_REPLAYED_STEP] = step
    count('replayed')
    flush()
  end
  return {'ok'}
end

if step <= recorded_step then
  return {'past', step, recorded_step}
end
if replayed_step < recorded_step then
  return {'not_replayed', step, replayed_step, recorded_step}
end
local groups, needed, num_trajectories = {}, 0, 0
for place = 9, #ARGV do
  local group = find(ARGV[place])
  if not group then
    return {'no_group', ARGV[place]}
  end
  if group[STATE] ~= TAKEN then
    return {'not_taken', group.id, state_names[group[STATE]]}
  end
  local derived = derived_before[group.id]
  needed, num_trajectories = needed + derived.reserved, num_trajectories + derived.arrived
  groups[#groups + 1] = group
end
local retained = totals[T_RETAINED_BYTES]
if retained + needed > limit then
  return {'retained_full', step, retained, needed, limit}
end

for _, group in ipairs(groups) do
  group[STATE] = RECORDED
  save(group)
end
call('ZADD', steps_key, step, step)
call('HSET', entries_key, step, ARGV[8])
call('HSET', batches_key, step, seal(step, struct.pack('>dss', tonumber(ARGV[6]), digest, joined)))
if step > totals[T_PUBLISHED_VERSION] then
  add_total(T_UNPUBLISHED_GROUPS, #groups)
end
totals[T_RECORDED_STEP], totals[T_REPLAYED_STEP] = step, step
count('recorded', #groups)
count('trajectories.recorded', num_trajectories)
flush()
return {'ok'}
