-- Totals: what `packing.unpack_totals` reads.

-- Returns the totals, the counters, settled and live groups by environment, the summary of the oldest group or
-- nothing, and the first step of the journal or nothing.
local function totals()
  local oldest = call('ZRANGE', prefix .. 'order', 0, 0)[1]
  return {
    call('HGETALL', meta_key), call('HGETALL', prefix .. 'counters'), call('HGETALL', prefix .. 'environments'),
    call('HGETALL', prefix .. 'live'),
    oldest and call('HGET', prefix .. 'summaries', oldest) or '',
    call('ZRANGE', prefix .. 'steps', 0, 0)[1] or '',
  }
end
