-- Totals: what `packing.unpack_totals` reads.

-- Returns the run, its totals, the counters, settled and live groups by environment, name and summary of the oldest
-- group or nothing, and the first step of the journal or nothing.
local function read_totals()
  local oldest = call('ZRANGE', prefix .. 'order', 0, 0)[1]
  return {
    call('HGET', meta_key, 'run_id'), packed_totals, call('HGETALL', prefix .. 'counters'),
    call('HGETALL', prefix .. 'environments'), call('HGETALL', prefix .. 'live'),
    oldest or '', oldest and call('HGET', prefix .. 'summaries', oldest) or '',
    call('ZRANGE', prefix .. 'steps', 0, 0)[1] or '',
  }
end
