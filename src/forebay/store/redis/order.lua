-- The order of dispatch, a page at a time.

-- Returns the names of live groups from one place in the order to another, and their summaries, in lists of at
-- most MAX_UNPACKED.
local function page(first, last)
  local names, summaries = call('ZRANGE', prefix .. 'order', first, last), {}
  for from = 1, #names, MAX_UNPACKED do
    local to = math.min(from + MAX_UNPACKED - 1, #names)
    summaries[#summaries + 1] = call('HMGET', prefix .. 'summaries', unpack(names, from, to))
  end
  return names, summaries
end
