-- ARGV: now, group, most frames, most bytes, then member and reason of each that cannot be read back
-- Sets them aside, for inspection; drops the group if too few are left.
local quarantine = prefix .. 'quarantine'
local group = find(ARGV[2])
if not group or group[STATE] ~= SETTLED then
  return {'ok'}
end
local kept, kept_bytes = 0, 0
for _, name in ipairs(call('HKEYS', quarantine)) do
  kept, kept_bytes = kept + 1, kept_bytes + call('HSTRLEN', quarantine, name)
end
local max_kept, max_bytes = tonumber(ARGV[3]), tonumber(ARGV[4])
for place = 5, #ARGV, 2 do
  local member = tonumber(ARGV[place])
  local at, payload = place_of(member), payload_key(group.id, member)
  local num_bytes = call('STRLEN', payload)
  -- Who read from a replica that was behind may have missed what is here.
  local misses = ARGV[place + 1] == 'missing_file' and num_bytes > 0 and num_bytes == group[at + NUM_BYTES]
  if group[at + M_STATE] == ARRIVED and not misses then
    if num_bytes > 0 and kept < max_kept and kept_bytes + num_bytes <= max_bytes then
      call('HSET', quarantine, group.id .. '/' .. member, call('GET', payload))
      kept, kept_bytes = kept + 1, kept_bytes + num_bytes
      count('quarantine.kept')
    elseif num_bytes > 0 then
      count('quarantine.full')
    end
    call('UNLINK', payload)
    set_member(group, at, FAILED)
    group[at + NUM_BYTES] = 0
    count_reason('corrupt', ARGV[place + 1])
    count_reason('trajectories.rejected', 'corrupt')
  end
end
local derived = derive(group)
if derived.arrived < group[MIN_GROUP_SIZE] then
  drop(group, 'dropped', 'corrupt')
else
  save(group, derived)
end
flush()
return {'ok'}
