-- The journal: `steps` orders it, `entries` keeps what Python wrote, `batches` what the scripts need of it.

local steps_key, entries_key, batches_key = prefix .. 'steps', prefix .. 'entries', prefix .. 'batches'

-- Returns who made a step, its digest, and its groups as one string, a line each; or nil.
local function batch_of(step)
  local raw = call('HGET', batches_key, step)
  if not raw then
    return nil
  end
  return struct.unpack('>dss', raw)
end

local function groups_of(step)
  local _, _, joined = batch_of(step)
  local ids = {}
  for group_id in string.gmatch(joined, '[^\n]+') do
    ids[#ids + 1] = group_id
  end
  return ids
end

local function remove_entry(step)
  call('ZREM', steps_key, step)
  call('HDEL', batches_key, step)
  call('HDEL', entries_key, step)
end

-- Returns the steps after one, as strings, in order.
local function steps_after(step)
  return call('ZRANGEBYSCORE', steps_key, '(' .. step, '+inf')
end
