-- ARGV, PUT_FIELDS for each put: now, group, member, group_size, trajectory, incarnation, version, timed_out,
-- num_bytes, stage
-- Returns the answer of each. A frame lies under its `stage` already, where it would not stay: a script that is
-- given large strings is slow.

local function put(first)
  local group_id, member = ARGV[first + 1], tonumber(ARGV[first + 2])
  local stage = prefix .. 's:' .. ARGV[first + 9]
  now_s = tonumber(ARGV[first])
  local group = find(group_id)
  local receipt = 'late'
  if group then
    local group_size = tonumber(ARGV[first + 3])
    if group[GROUP_SIZE] ~= group_size or member < 0 or member >= group_size then
      count('rejected.foreign')
      call('UNLINK', stage)
      return {'foreign', group_id, member, group_size, group[GROUP_SIZE]}
    end
    local at = place_of(member)
    local state = group[at + M_STATE]
    if state == ARRIVED and group[at + TRAJECTORY_ID] == ARGV[first + 4] then
      receipt = 'duplicate'
    elseif state == FREE or state == LEASED then
      if call('PERSIST', stage) == 0 then
        return {'not_staged'}
      end
      call('RENAME', stage, payload_key(group_id, member))
      local num_bytes = tonumber(ARGV[first + 8])
      group[at + M_STATE], group[at + LEASE_EXPIRES_S] = ARRIVED, 0
      group[at + M_INCARNATION], group[at + M_VERSION] = tonumber(ARGV[first + 5]), tonumber(ARGV[first + 6])
      group[at + NUM_BYTES], group[at + TRAJECTORY_ID] = num_bytes, ARGV[first + 4]
      count('accepted')
      count('timeouts', tonumber(ARGV[first + 7]))
      count('oversize', num_bytes > group[MEMBER_BYTES] and 1 or 0)
      close_or_save(group)
      return {'ok', 'accepted'}
    end
  end
  count(receipt)
  call('UNLINK', stage)
  return {'ok', receipt}
end

local answers = {'ok'}
for first = 1, #ARGV, PUT_FIELDS do
  answers[#answers + 1] = put(first)
end
flush()
return answers
