-- ARGV: now, max_slots, ttl, actor, incarnation, version, token, the only environment wanted or ''
-- Returns the slots in MessagePack, those of a group together, then the specification of each group, in their
-- order.
local token, names = ARGV[7], {}
local answer = answer_of(token)
if answer then
  for _, slots in ipairs(cmsgpack.unpack(answer)) do
    names[#names + 1] = slots[1]
  end
else
  settle_due()
  local max_slots, lease_expires_s = tonumber(ARGV[2]), now_s + tonumber(ARGV[3])
  local claimed, num_slots, place, wanted = {}, 0, 0, ARGV[8]
  while num_slots < max_slots do
    local group_id = call('ZRANGE', prefix .. 'claimable', place, place)[1]
    if not group_id then
      break
    end
    local group = find_named(group_id)
    if wanted ~= '' and group[ENVIRONMENT] ~= wanted then
      place = place + 1
    else
      local incarnation, version = tonumber(ARGV[5]), tonumber(ARGV[6])
      if older(incarnation, version, group[MIN_INCARNATION], group[MIN_VERSION]) then
        incarnation, version = group[MIN_INCARNATION], group[MIN_VERSION]
      end
      if group[DEADLINE_WALL_S] == NONE then
        group[DEADLINE_WALL_S] = now_s + group[DEADLINE_S]
      end
      local leased = {}
      for member = 0, group[GROUP_SIZE] - 1 do
        local at = place_of(member)
        if group[at + M_STATE] == FREE and num_slots < max_slots then
          group[at + M_STATE], group[at + ACTOR], group[at + LEASE_EXPIRES_S] = LEASED, ARGV[4], lease_expires_s
          group[at + M_INCARNATION], group[at + M_VERSION] = incarnation, version
          leased[#leased + 1], leased[#leased + 2] = member, group[at + ATTEMPT]
          num_slots = num_slots + 1
        end
      end
      if #leased == 0 then
        damaged('index of groups', 'it names a group without a free member: ' .. group_id)
      end
      names[#names + 1] = group_id
      claimed[#claimed + 1] = {
        group_id, group[GROUP_SIZE], group[INCARNATION], incarnation, version, lease_expires_s,
        group[DEADLINE_WALL_S], leased,
      }
      save(group)
    end
  end
  count('claimed', num_slots)
  flush()
  answer = cmsgpack.pack(claimed)
  if num_slots > 0 then
    keep_answer(token, answer)
  end
end
local reply = {'ok', answer}
for _, group_id in ipairs(names) do
  reply[#reply + 1] = call('GET', prefix .. 't:' .. group_id)
end
return reply
