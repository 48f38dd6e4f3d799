-- The journal: `steps` orders it, `entries` keeps what Python wrote, `batches` what the scripts need of it.

local steps_key, entries_key, batches_key = prefix .. 'steps', prefix .. 'entries', prefix .. 'batches'

-- Returns who made a step, its digest, and its groups as one string, a line each; or nil.
local function batch_of(step)
  local raw = call('HGET', batches_key, step)
  if not raw then
    return nil
  end
  return struct.unpack('>dss', unseal(step, raw, 'journal at step', step))
end

-- Returns the names of the groups of a step.
local function ids_of(step)
  local made_by, _, joined = batch_of(step)
  if not made_by then
    damaged('journal', 'it lacks the batch of step ' .. step)
  end
  local ids = {}
  for group_id in string.gmatch(joined, '[^\n]+') do
    ids[#ids + 1] = group_id
  end
  return ids
end

-- Returns the groups of a step, to be worked on.
local function groups_of(step)
  local groups = {}
  for place, group_id in ipairs(ids_of(step)) do
    groups[place] = find_named(group_id)
  end
  return groups
end

-- Returns steps, each followed by its entry.
local function with_entries(steps)
  local entries = {}
  for place, step in ipairs(steps) do
    entries[2 * place - 1], entries[2 * place] = step, call('HGET', entries_key, step) or ''
  end
  return entries
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
