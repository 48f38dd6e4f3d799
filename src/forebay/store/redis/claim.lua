-- ARGV: now, max_slots, ttl, actor, incarnation, version, token, the only environment wanted or ''
-- Returns the slots, 9 values each, in MessagePack, then the specification of each group, in the order of first
-- appearance.
local token = ARGV[7]
local answer = answer_of(token)
if not answer then
  settle_due()
  local max_slots, lease_expires_s = tonumber(ARGV[2]), now_s + tonumber(ARGV[3])
  local slots, place, wanted = {}, 0, ARGV[8]
  while #slots < max_slots do
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
      for member = 0, group[GROUP_SIZE] - 1 do
        local at = place_of(member)
        if group[at + M_STATE] == FREE and #slots < max_slots then
          group[at + M_STATE], group[at + ACTOR], group[at + LEASE_EXPIRES_S] = LEASED, ARGV[4], lease_expires_s
          group[at + M_INCARNATION], group[at + M_VERSION] = incarnation, version
          slots[#slots + 1] = {
            group_id, member, group[at + ATTEMPT], group[GROUP_SIZE], group[INCARNATION], incarnation, version,
            lease_expires_s, group[DEADLINE_WALL_S],
          }
        end
      end
      save(group)
    end
  end
  count('claimed', #slots)
  flush()
  answer = cmsgpack.pack(slots)
  if #slots > 0 then
    keep_answer(token, answer)
  end
end
local reply, seen = {'ok', answer}, {}
for _, slot in ipairs(cmsgpack.unpack(answer)) do
  if not seen[slot[1]] then
    seen[slot[1]] = true
    reply[#reply + 1] = call('GET', prefix .. 't:' .. slot[1])
  end
end
return reply
