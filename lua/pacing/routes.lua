-- routes.lua: notes by which routes an instance posts, and returns the routes that other instances have noted.
--
-- KEYS
--   1   routes  sorted set: routes as text -> when an instance noted them last
--
-- ARGV
--   routes of the instance
--
-- Returns the routes of other instances, those that were noted last first.
--
-- Errors: WRONGTYPE and NOPERM are raised before anything is written.

-- How many routes are kept: of each, the look-up of a post reads one more channel at most.
local MOST_ROUTES = 4

-- How long routes are kept. An instance notes its routes before its first post, and then every hour.
local ROUTES_KEPT = 366 * 24 * 3600 * SECOND

local routes_key, own = KEYS[1], ARGV[1]

local others = {}
for _, routes in ipairs(redis.call('ZRANGE', routes_key, 0, -1, 'REV')) do
  if routes ~= own then
    others[#others + 1] = routes
  end
end
redis.call('PEXPIRE', routes_key, milliseconds(ROUTES_KEPT))
remove_lowest(routes_key, math.max(0, #others + 1 - MOST_ROUTES))
redis.call('ZADD', routes_key, integer(server_time()), own)
redis.call('PEXPIRE', routes_key, milliseconds(ROUTES_KEPT))
return others
