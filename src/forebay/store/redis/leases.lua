-- Leases: which member an actor works on, until when; the counterpart of leases.py.

local function end_attempt(group, at)
  group[at + ATTEMPT] = group[at + ATTEMPT] + 1
  if group[at + ATTEMPT] >= group[MAX_ATTEMPTS] then
    set_member(group, at, FAILED)
    count('members.failed')
  else
    set_member(group, at, FREE)
    count('retried')
  end
end

-- Returns where the member lies whose current lease is given, or nil.
local function holder(group, member, attempt)
  if not group or member < 0 or member >= group[GROUP_SIZE] then
    return nil
  end
  local at = place_of(member)
  return group[at + M_STATE] == LEASED and group[at + ATTEMPT] == attempt and at or nil
end

-- Applies lease expiries and group deadlines that have passed, at most MAX_DUE of them, so that a long absence
-- keeps nobody waiting; returns how many groups changed.
local function settle_due()
  local limit_us = math.max(0, math.floor(now_s * 1e6))
  local due = call('ZRANGEBYSCORE', prefix .. 'due', '-inf', limit_us, 'LIMIT', 0, MAX_DUE)
  for _, group_id in ipairs(due) do
    local group = find_named(group_id)
    -- The deadline of the group comes first: a lease that outlives it is not worth another attempt.
    if not close_or_save(group, true) then
      for member = 0, group[GROUP_SIZE] - 1 do
        local at = place_of(member)
        if group[at + M_STATE] == LEASED and group[at + LEASE_EXPIRES_S] <= now_s then
          count('expired')
          end_attempt(group, at)
        end
      end
      close_or_save(group)
    end
  end
  return #due
end
