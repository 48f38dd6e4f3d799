-- ARGV: now
-- Returns the steps of the journal, in order, each followed by its entry.
return {'ok', with_entries(call('ZRANGE', steps_key, 0, -1))}
