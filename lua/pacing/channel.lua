-- channel.lua: notes the ID of a channel for all instances, or returns the ID that an instance has noted.
--
-- KEYS
--   1   id:…  string: ID of the channel
--
-- ARGV
--   ID of the channel ('' asks for it)
--
-- Returns the ID, '' if it is not known.
--
-- Errors: WRONGTYPE and NOPERM are raised before anything is written.

-- How long an ID is kept. An instance that posts notes the ID again. The name of a channel may have gone to a channel with another ID by then.
local ID_KEPT = 31 * 24 * 3600 * SECOND

local id_key, id = KEYS[1], ARGV[1]

local known = redis.call('GET', id_key) or ''
if id == '' then
  return { known }
end
redis.call('SET', id_key, id, 'PX', milliseconds(ID_KEPT))
return { id }
