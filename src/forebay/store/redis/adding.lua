-- Groups: how they begin; the counterpart of groups.py.

-- Makes a group claimable whatever the capacity, from the SPEC_FIELDS arguments that begin at `first`.
local function add_group(first, incarnation)
  local function number(place)
    return tonumber(ARGV[first + place])
  end
  local group = {
    number(3), number(0), number(4), number(5), number(6), number(7), number(8), number(9),
    incarnation, now_s, OPEN, NONE, ARGV[first + 2],
  }
  group.id = ARGV[first + 1]
  for member = 0, group[GROUP_SIZE] - 1 do
    local at = place_of(member)
    set_member(group, at, FREE)
    group[at + ATTEMPT], group[at + NUM_BYTES] = 0, 0
    group[at + TRAJECTORY_ID], group[at + ACTOR] = '', ''
  end
  call('SET', prefix .. 't:' .. group.id, ARGV[first + 10])
  save(group)
  count('dispatched')
end
