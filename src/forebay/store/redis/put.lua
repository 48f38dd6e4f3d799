-- ARGV, PUT_FIELDS for each put: now; group, member, group_size, trajectory, incarnation, version, timed_out and
-- num_bytes in MessagePack; stage
-- Returns for each what became of it, or why it is refused. A frame lies under its `stage` already, where it would not stay: a script that is
-- given large strings is slow.

-- Groups as the puts before have left them, by name, and those of them that are yet to be saved: once each,
-- since the members of a group often arrive together.
local groups, unsaved = {}, {}
local num_accepted, num_timeouts, num_oversize = 0, 0, 0

-- Returns a group or false; nothing, and why, if its record is damaged: that is no reason to refuse the others.
local function group_of(group_id)
  local group = groups[group_id]
  if group == nil then
    local whole, found = pcall(find, group_id)
    if not whole then
      local why = type(found) == 'table' and found.err or found
      if string.sub(why, 1, 8) ~= 'DAMAGED ' then
        error(found)
      end
      return nil, string.sub(why, 9)
    end
    group = found or false
    groups[group_id] = group
  end
  return group
end

-- Saves a group later, or at once where that decides what becomes of the next put.
local function save_or_close(group)
  local deadline_s = group[DEADLINE_WALL_S]
  if deadline_s ~= NONE and deadline_s <= now_s then
    unsaved[group.id], groups[group.id] = nil, nil
    close_or_save(group)
  else
    unsaved[group.id] = group
  end
end

local function put(now, packed, name)
  local group_id, member, group_size, trajectory_id, incarnation, version, timed_out, num_bytes =
    unpack(cmsgpack.unpack(packed))
  local stage = prefix .. 's:' .. name
  now_s = tonumber(now)
  local group, why = group_of(group_id)
  if why then
    return {'damaged', why}
  end
  local receipt, receipt_name = R_LATE, 'late'
  if group then
    if group[GROUP_SIZE] ~= group_size or member < 0 or member >= group_size then
      count('rejected.foreign')
      call('UNLINK', stage)
      return {'foreign', group_id, member, group_size, group[GROUP_SIZE]}
    end
    local at = place_of(member)
    local state = group[at + M_STATE]
    if state == ARRIVED and group[at + TRAJECTORY_ID] == trajectory_id then
      receipt, receipt_name = R_DUPLICATE, 'duplicate'
    elseif state == FREE or state == LEASED then
      if call('PERSIST', stage) == 0 then
        return {'not_staged'}
      end
      call('RENAME', stage, payload_key(group_id, member))
      group[at + M_STATE], group[at + LEASE_EXPIRES_S] = ARRIVED, 0
      group[at + M_INCARNATION], group[at + M_VERSION] = incarnation, version
      group[at + NUM_BYTES], group[at + TRAJECTORY_ID] = num_bytes, trajectory_id
      num_accepted, num_timeouts = num_accepted + 1, num_timeouts + timed_out
      if num_bytes > group[MEMBER_BYTES] then
        num_oversize = num_oversize + 1
      end
      save_or_close(group)
      return R_ACCEPTED
    end
  end
  count(receipt_name)
  call('UNLINK', stage)
  return receipt
end

local answers = {'ok'}
for first = 1, #ARGV, PUT_FIELDS do
  answers[#answers + 1] = put(ARGV[first], ARGV[first + 1], ARGV[first + 2])
end
count('accepted', num_accepted)
count('timeouts', num_timeouts)
count('oversize', num_oversize)
for _, group in pairs(unsaved) do
  close_or_save(group)
end
flush()
return answers
