-- ARGV: now
-- Returns the entries of the journal, in order.
local entries = {'ok'}
for place, name in ipairs(call('ZRANGE', steps_key, 0, -1)) do
  entries[place + 1] = call('HGET', entries_key, name)
end
return entries
