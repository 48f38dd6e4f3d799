-- Groups: when they settle or are dropped; the counterpart of groups.py.

-- `kind`: `dropped` by a rule, `rejected` by the learner.
local function drop(group, kind, reason)
  count_reason(kind, reason)
  local arrived = derive(group).arrived
  if arrived > 0 then
    count_reason('trajectories.rejected', reason, arrived)
  end
  forget(group)
end

-- Ends a member's hold on a lease and on a version.
local function set_member(group, at, state)
  group[at + M_STATE], group[at + LEASE_EXPIRES_S] = state, 0
  group[at + M_INCARNATION], group[at + M_VERSION] = NONE, NONE
end

-- Settles or drops an open group if the group rule says so, or just saves it; returns whether it is closed.
local function close_or_save(group, only_close)
  local derived = derive(group)
  local unfinished, deadline_s = derived.free + derived.leased, group[DEADLINE_WALL_S]
  if unfinished > 0 and (deadline_s == NONE or deadline_s > now_s) then
    if not only_close then
      save(group, derived)
    end
    return false
  end
  if derived.arrived < group[MIN_GROUP_SIZE] then
    drop(group, 'dropped', unfinished > 0 and 'deadline' or 'failed')
    return true
  end
  group[STATE] = SETTLED
  count('settled')
  if unfinished > 0 then
    for member = 0, group[GROUP_SIZE] - 1 do
      local at = place_of(member)
      if group[at + M_STATE] == FREE or group[at + M_STATE] == LEASED then
        set_member(group, at, MISSING)
      end
    end
    count('members.missing', unfinished)
    derived = derive(group)
  else
    derived.state, derived.due_us = SETTLED, false
  end
  save(group, derived)
  return true
end
