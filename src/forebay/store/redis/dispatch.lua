-- ARGV: now, incarnation, known_step, capacity_groups, capacity_bytes, then SPEC_FIELDS for each group:
-- serial, group, environment, group_size, min_group_size, incarnation, version, deadline, member_bytes,
-- max_attempts, specification
local incarnation = tonumber(ARGV[2])
local refusal = fence(incarnation, tonumber(ARGV[3]))
if refusal then
  return refusal
end
local first_serial = totals[T_NEXT_SERIAL]
local next_serial = first_serial
for at = 6, #ARGV, SPEC_FIELDS do
  local serial = tonumber(ARGV[at])
  if serial > next_serial then
    return {'hole', ARGV[at + 1], serial, next_serial}
  end
  next_serial = math.max(next_serial, serial + 1)
end

local capacity_groups, capacity_bytes = tonumber(ARGV[4]), tonumber(ARGV[5])
local live = totals[T_STATES + OPEN] + totals[T_STATES + SETTLED] + totals[T_STATES + TAKEN]
local live_bytes = totals[T_LIVE_BYTES]
local accepted, added, num_dispatched = {}, {}, 0
next_serial = first_serial
for at = 6, #ARGV, SPEC_FIELDS do
  local serial, group_id = tonumber(ARGV[at]), ARGV[at + 1]
  if serial >= next_serial then
    if not added[group_id] and call('EXISTS', group_key(group_id)) == 0 then
      local needed = tonumber(ARGV[at + 3]) * tonumber(ARGV[at + 8])
      if needed > capacity_bytes then
        return {'too_large_alone', group_id, tonumber(ARGV[at + 3]), tonumber(ARGV[at + 8]), capacity_bytes}
      end
      if live >= capacity_groups or live_bytes + needed > capacity_bytes then
        break
      end
      live, live_bytes = live + 1, live_bytes + needed
      accepted[#accepted + 1], added[group_id] = at, true
    end
    next_serial = serial + 1
  end
  num_dispatched = num_dispatched + 1
end

for _, at in ipairs(accepted) do
  add_group(at, incarnation)
end
totals[T_NEXT_SERIAL] = next_serial
flush()
return {'ok', num_dispatched}
