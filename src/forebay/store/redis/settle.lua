-- ARGV: now
local num_changed = settle_due()
flush()
return {'ok', num_changed, num_changed == MAX_DUE and 1 or 0}
