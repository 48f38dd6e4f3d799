-- ARGV: now, incarnation, known_step, version
local refusal = fence(tonumber(ARGV[2]), tonumber(ARGV[3]))
if refusal then
  return refusal
end
local version, replayed_step = tonumber(ARGV[4]), meta_number('replayed_step')
if version > replayed_step then
  return {'not_remade', version, replayed_step}
end
local made_by = batch_of(version)
if not made_by then
  return {'ok'}
end
local moved = false
local forks = cmsgpack.unpack(call('HGET', meta_key, 'forks'))
for _, fork in ipairs(forks) do
  if fork[1] > made_by and fork[2] < version then
    fork[2], moved = version, true
  end
end
if moved then
  call('HSET', meta_key, 'forks', cmsgpack.pack(forks))
  change('meta', 'watch', 1)
  flush()
end
return {'ok'}
