-- ARGV: format, run, its totals; makes the store if there is none. Needs no ledger: there may be none yet.
local meta_key = KEYS[1]
local call = redis.call

-- A script that may not use one of its commands would stop half way, and what it wrote would stay: so every
-- command is tried before anything is made.
local probe = string.sub(meta_key, 1, -5) .. 'probe'
local hash, ordered, moved = probe .. ':hash', probe .. ':ordered', probe .. ':moved'
call('SET', probe, 1, 'EX', 600)
call('PERSIST', probe)
call('RENAME', probe, moved)
call('GET', moved)
call('STRLEN', moved)
call('EXISTS', moved)
call('HSET', hash, 'a', 1)
call('HINCRBY', hash, 'a', 1)
call('HGET', hash, 'a')
call('HGETALL', hash)
call('HKEYS', hash)
call('HLEN', hash)
call('HSTRLEN', hash, 'a')
call('HMGET', hash, 'a')
call('HEXISTS', hash, 'a')
call('HDEL', hash, 'b')
call('ZADD', ordered, 1, 'a')
call('ZRANGE', ordered, 0, -1)
call('ZRANGEBYSCORE', ordered, 0, 1)
call('ZCARD', ordered)
call('ZREM', ordered, 'b')
call('UNLINK', moved, hash, ordered)

if call('EXISTS', meta_key) == 0 then
  call('HSET', meta_key, 'format', ARGV[1], 'run_id', ARGV[2], 'totals', ARGV[3])
end
return {'ok'}
