-- One call's working view: records in, records out, totals and indexes kept true.
-- The counterpart of ledger.py and records.derive: every verb changes groups through `find` and `save`, which
-- write the difference between what followed from the record before and what follows from it now.
--
-- A script cannot be undone: every refusal comes before the first write.
--
-- A group is a flat table of numbers and strings: its head, then the fields of each member. Names in capitals are
-- those of constants.lua.

local meta_key = KEYS[1]
local prefix = string.sub(meta_key, 1, -5)

local call = redis.call
local now_s = tonumber(ARGV[1])
local derived_before, changes = {}, {}
-- A flat table of numbers, and the record that it was read from.
local totals, packed_totals

local function pack_numbers(numbers)
  local packed = ''
  for from = 1, #numbers, MAX_UNPACKED do
    local to = math.min(from + MAX_UNPACKED - 1, #numbers)
    packed = packed .. struct.pack('>' .. string.rep('d', to - from + 1), unpack(numbers, from, to))
  end
  return packed
end

local function unpack_numbers(packed)
  local numbers = {}
  for from = 1, #packed, 8 * MAX_UNPACKED do
    local num_more = math.min(MAX_UNPACKED, (#packed - from + 1) / 8)
    -- The last value tells where the next one begins.
    local more = {struct.unpack('>' .. string.rep('d', num_more), packed, from)}
    for place = 1, num_more do
      numbers[#numbers + 1] = more[place]
    end
  end
  return numbers
end

-- Returns a record as it lies under a key: with a checksum over both.
local function seal(key, body)
  return body .. string.sub(redis.sha1hex(key .. body), 1, CHECKSUM_BYTES)
end

-- Adds to a number of one of the hashes, once `flush` is called.
local function change(hash, name, amount)
  if amount ~= 0 then
    local of_hash = changes[hash]
    if not of_hash then
      of_hash = {}
      changes[hash] = of_hash
    end
    of_hash[name] = (of_hash[name] or 0) + amount
  end
end

local function count(name, amount)
  change('counters', name, amount or 1)
end

local function flush()
  local packed = seal(meta_key, pack_numbers(totals))
  if packed ~= packed_totals then
    call('HSET', meta_key, 'totals', packed)
    packed_totals = packed
  end
  for hash, of_hash in pairs(changes) do
    local key = prefix .. hash
    for name, amount in pairs(of_hash) do
      if amount ~= 0 then
        call('HINCRBY', key, name, amount)
      end
    end
  end
  changes = {}
end

-- Ends the script: a record is not as it was written. What was changed before it was found stays true.
local function damaged(record, why)
  if totals then
    flush()
  end
  error(redis.error_reply('DAMAGED ' .. record .. '|' .. why))
end

-- Returns what was sealed under a key.
local function unseal(key, raw, what, name)
  local body = string.sub(raw, 1, -CHECKSUM_BYTES - 1)
  if string.sub(redis.sha1hex(key .. body), 1, CHECKSUM_BYTES) ~= string.sub(raw, -CHECKSUM_BYTES) then
    damaged(what .. ' ' .. name, 'its checksum does not match')
  end
  return body
end

-- Counts a reason given from outside; odd or too many reasons share `other`.
local function count_reason(kind, reason, amount)
  local name, key = kind .. '.' .. reason, prefix .. 'counters'
  local new = changes.counters or {}
  local known = new[name] or call('HEXISTS', key, name) == 1
  if not known then
    local num_new = 0
    for _ in pairs(new) do
      num_new = num_new + 1
    end
    known = call('HLEN', key) + num_new < MAX_COUNTERS
  end
  local plain = #reason <= 64 and string.find(reason, '^%a[%w_]*$')
  count(known and plain and name or kind .. '.other', amount or 1)
end

local function older(incarnation, version, than_incarnation, than_version)
  return incarnation < than_incarnation or (incarnation == than_incarnation and version < than_version)
end

-- Returns where the fields of a member lie: add one of the constants. Members are counted from 0.
local function place_of(member)
  return HEAD + member * MEMBER_FIELDS
end

-- Everything that follows from a group's record.
local function derive(group)
  local leased, arrived, free, stored = 0, 0, 0, 0
  local start_incarnation, start_version = NONE, NONE
  local due_s = group[DEADLINE_WALL_S]
  for at = HEAD, HEAD + (group[GROUP_SIZE] - 1) * MEMBER_FIELDS, MEMBER_FIELDS do
    local state = group[at + M_STATE]
    if state == ARRIVED then
      arrived = arrived + 1
      stored = stored + group[at + NUM_BYTES]
    elseif state == LEASED then
      leased = leased + 1
      local expires_s = group[at + LEASE_EXPIRES_S]
      if due_s == NONE or expires_s < due_s then
        due_s = expires_s
      end
    elseif state == FREE then
      free = free + 1
    end
    local incarnation, version = group[at + M_INCARNATION], group[at + M_VERSION]
    if incarnation ~= NONE and (start_incarnation == NONE
        or older(incarnation, version, start_incarnation, start_version)) then
      start_incarnation, start_version = incarnation, version
    end
  end
  local state = group[STATE]
  return {
    state = state,
    leased = leased,
    arrived = arrived,
    free = free,
    reserved = stored + (free + leased) * group[MEMBER_BYTES],
    start_incarnation = start_incarnation,
    start_version = start_version,
    due_us = state == OPEN and due_s ~= NONE and math.max(0, math.floor(due_s * 1e6)),
  }
end

local state_names = {'open', 'settled', 'taken', 'recorded'}

local function add_total(place, amount)
  totals[place] = totals[place] + amount
end

local nothing = {state = 0, leased = 0, arrived = 0, free = 0, reserved = 0, due_us = false}

local function move_index(name, was, is, score, group_id)
  if is and not was then
    call('ZADD', prefix .. name, score, group_id)
  elseif was and not is then
    call('ZREM', prefix .. name, group_id)
  end
end

-- Adds a group's share to the totals, or takes it away.
local function add_share(derived, sign)
  if derived == nothing then
    return
  end
  local retained = derived.state == RECORDED
  add_total(T_STATES + derived.state, sign)
  add_total(T_LEASED, sign * derived.leased)
  add_total(retained and T_RETAINED_TRAJECTORIES or T_LIVE_TRAJECTORIES, sign * derived.arrived)
  add_total(retained and T_RETAINED_BYTES or T_LIVE_BYTES, sign * derived.reserved)
end

-- Writes the difference between two states of a group to the indexes and the totals.
local function move(group, before, after)
  local group_id, serial = group.id, group[SERIAL]
  local was_live = before ~= nothing and before.state ~= RECORDED
  local is_live = after ~= nothing and after.state ~= RECORDED
  move_index('groups', before ~= nothing, after ~= nothing, serial, group_id)
  move_index('order', was_live, is_live, serial, group_id)
  move_index('claimable', before.free > 0, after.free > 0, serial, group_id)
  if before.due_us ~= after.due_us then
    if after.due_us then
      call('ZADD', prefix .. 'due', after.due_us, group_id)
    else
      call('ZREM', prefix .. 'due', group_id)
    end
  end
  local restarted = before.start_incarnation ~= after.start_incarnation
    or before.start_version ~= after.start_version
  local moved = before.state ~= after.state
  if is_live then
    if restarted or moved or before.reserved ~= after.reserved then
      call('HSET', prefix .. 'summaries', group_id, seal(group_id, struct.pack(
        '>dddddds', serial, after.state, after.start_incarnation, after.start_version, after.reserved,
        group[DISPATCHED_S], group[ENVIRONMENT]
      )))
    end
  elseif was_live then
    call('HDEL', prefix .. 'summaries', group_id)
  end
  add_share(before, -1)
  add_share(after, 1)
  if moved and (before.state == SETTLED or after.state == SETTLED) then
    change('environments', group[ENVIRONMENT], after.state == SETTLED and 1 or -1)
  end
  if was_live ~= is_live then
    change('live', group[ENVIRONMENT], is_live and 1 or -1)
  end
  if restarted or moved then
    add_total(T_WATCH, 1)
  end
end

local function group_key(group_id)
  return prefix .. 'g:' .. group_id
end

local function payload_key(group_id, member)
  return prefix .. 'p:' .. group_id .. ':' .. member
end

-- Returns a group to be worked on, or nil.
local function find(group_id)
  local key = group_key(group_id)
  local raw = call('GET', key)
  if not raw then
    return nil
  end
  local body = unseal(key, raw, 'record of group', group_id)
  local group_size = struct.unpack('>d', body)
  local known = math.min(group_size, MAX_UNPACKED_MEMBERS)
  local group = {struct.unpack(HEAD_FORMAT .. string.rep(MEMBER_FORMAT, known), body)}
  while known < group_size do
    -- The last value tells where the next one begins.
    local place, num_more = place_of(known), math.min(group_size - known, MAX_UNPACKED_MEMBERS)
    local more = {struct.unpack('>' .. string.rep(MEMBER_FORMAT, num_more), body, group[place + 1])}
    for number, value in ipairs(more) do
      group[place + number] = value
    end
    known = known + num_more
  end
  group.id = group_id
  derived_before[group_id] = derive(group)
  return group
end

-- Returns a group that something else in the store names.
local function find_named(group_id)
  local group = find(group_id)
  if not group then
    damaged('index or journal', 'it names a group that is not there: ' .. group_id)
  end
  return group
end

local function pack(group)
  local group_size = group[GROUP_SIZE]
  local known = math.min(group_size, MAX_UNPACKED_MEMBERS)
  local format = HEAD_FORMAT .. string.rep(MEMBER_FORMAT, known)
  local packed = struct.pack(format, unpack(group, 1, place_of(known)))
  while known < group_size do
    local place, num_more = place_of(known), math.min(group_size - known, MAX_UNPACKED_MEMBERS)
    format = '>' .. string.rep(MEMBER_FORMAT, num_more)
    packed = packed .. struct.pack(format, unpack(group, place + 1, place_of(known + num_more)))
    known = known + num_more
  end
  return packed
end

-- Writes a group, and what follows from it; `after` is that, if it is known already.
local function save(group, after)
  after = after or derive(group)
  move(group, derived_before[group.id] or nothing, after)
  derived_before[group.id] = after
  local key = group_key(group.id)
  call('SET', key, seal(key, pack(group)))
end

-- Removes a group with its payloads.
local function forget(group)
  move(group, derived_before[group.id], nothing)
  derived_before[group.id] = nil
  local keys = {group_key(group.id), prefix .. 't:' .. group.id}
  for member = 0, group[GROUP_SIZE] - 1 do
    if group[place_of(member) + M_STATE] == ARRIVED then
      keys[#keys + 1] = payload_key(group.id, member)
    end
  end
  for from = 1, #keys, MAX_UNPACKED do
    call('UNLINK', unpack(keys, from, math.min(from + MAX_UNPACKED - 1, #keys)))
  end
end

-- Returns why a learner may not write, or nil: a newer one exists, this one never began, or the server has
-- lost a step that it acknowledged to this learner.
local function fence(incarnation, known_step)
  local newest = totals[T_INCARNATION]
  if incarnation < newest then
    return {'fenced', incarnation, newest}
  end
  if incarnation > newest then
    return {'never_began', incarnation, newest}
  end
  local recorded_step = totals[T_RECORDED_STEP]
  if recorded_step < known_step then
    return {'went_back', recorded_step, known_step}
  end
  return nil
end

-- A call that must not be done twice carries a token; made again, it gets the answer of the first time.
local function answer_of(token)
  return call('GET', prefix .. 'call:' .. token)
end

local function keep_answer(token, answer)
  call('SET', prefix .. 'call:' .. token, answer, 'EX', TOKEN_LIFE_S)
end

packed_totals = call('HGET', meta_key, 'totals')
if not packed_totals then
  return {'gone'}
end
totals = unpack_numbers(unseal(meta_key, packed_totals, 'totals of', prefix))
