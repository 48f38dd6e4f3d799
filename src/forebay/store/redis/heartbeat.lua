-- ARGV: now, ttl, then group, member and attempt of each slot
-- Returns the places, from 0, of the slots that are no longer held.
local lease_expires_s = now_s + tonumber(ARGV[2])
local reply, groups = {'ok'}, {}
for first = 3, #ARGV, 3 do
  local group_id = ARGV[first]
  if groups[group_id] == nil then
    groups[group_id] = find(group_id) or false
  end
  local group = groups[group_id]
  local at = holder(group, tonumber(ARGV[first + 1]), tonumber(ARGV[first + 2]))
  if at then
    group[at + LEASE_EXPIRES_S] = lease_expires_s
  else
    reply[#reply + 1] = (first - 3) / 3
  end
end
for _, group in pairs(groups) do
  if group then
    save(group)
  end
end
flush()
return reply
