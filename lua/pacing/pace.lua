-- pace.lua: reserves the next post of a channel, for all instances: of the channel and of the workspace together, or of neither.
--
-- A channel follows GCRA: slot times are one interval apart, after a burst if the channel was idle, and none lies in a pause. The
-- state of a channel is its theoretical arrival time (TAT), the end of all reserved intervals. The workspace has a sliding window
-- (lib/window.lua).
--
-- Only what is near is reserved: a post of the channel that is due within LEAD, and a post of the workspace within HORIZON. Any
-- other asker gets a time to ask again. Until then it counts as waiting: behind the askers of its channel with a lower order, and
-- its channel behind the channels that have waited longer for the workspace. A channel has one place in that line. It loses the
-- place with each post and goes to the end of the line, so channels take turns however much waits for one of them.
--
-- An asker asks again after half of the estimated wait. So it soon learns that others ahead of it have gone, and no slot is left
-- unused because an instance has ended.
--
-- KEYS
--   1   calls     sorted set: nonce of a call that granted something -> its time
--   2   pauses    sorted set: channel -> end of its pause
--   3   paces     sorted set: channel -> its TAT
--   4   posts     sorted set: post of the workspace -> its slot time
--   5   turns     sorted set: channel that waits for the workspace -> since when
--   6   asked     sorted set: channel that waits for the workspace -> until when it counts
--   7   askers:…  string: who waits for the channel (lib/askers.lua)
--
-- ARGV
--   channel, name of the asker, order of its message (the lowest goes first), longest wait, interval, burst, remaining pause of
--   the channel known to the asker, posts of the workspace in a window (0: any number), the window
--     times in microseconds; an interval of 0 spaces nothing; if the estimated wait exceeds the longest one, nothing is written
--
-- Returns 1 if a post is reserved, otherwise 0; the time until the post or until the asker asks again; the estimated time until
-- the post (microseconds).
--
-- Errors: WRONGTYPE and NOPERM are raised before anything is written.

--@include lib/records lib/destinations lib/window lib/askers

-- How early a post is reserved: of a channel, and of the workspace.
local LEAD, HORIZON = SECOND / 20, SECOND

-- The shortest time before an asker asks again that waits for others.
local SHORTEST = SECOND / 40

local calls_key, pauses_key, paces_key, posts_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local turns_key, asked_key, askers_key = KEYS[5], KEYS[6], KEYS[7]
local channel, asker, order = ARGV[1], ARGV[2], tonumber(ARGV[3])
local max_wait, interval, burst, known_pause = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local count, window = tonumber(ARGV[8]), tonumber(ARGV[9])
local tolerance = (burst - 1) * interval -- how far the TAT may run ahead of the time: the burst

-- A pause that ends later is ignored.
local farthest = MOST_AHEAD + tolerance + interval

local now = deployment_time(calls_key)
local pause_end = math.max(
  recorded_time(pauses_key, channel, now + farthest),
  recorded_time(pauses_key, WORKSPACE, now + farthest),
  now + known_pause
)
local tat = recorded_tat(paces_key, channel, math.max(now, pause_end), tolerance, interval)
if pause_end > now then
  tat = math.max(tat, pause_end + tolerance) -- no burst follows a pause
end

-- Returns the slot time of a post of the channel behind others.
local function channel_slot(behind)
  local earliest = math.max(now, pause_end)
  return math.max(earliest, math.max(tat, earliest) + behind * interval - tolerance)
end

local place, askers, askers_text = load_askers(askers_key, now)
askers[asker] = { order = order, counts_until = now }
local before = count_before(askers, asker)
local is_due = channel_slot(0) <= now + LEAD

-- The line of the workspace, without the channels that count no more.
local gone, line_length, ahead = {}, 0, 0
local workspace_slot = window_slots(posts_key, count, window, now, now + 2 * HORIZON)
if place == 0 then
  place = now
end
if count > 0 then
  for _, name in ipairs(redis.call('ZRANGE', asked_key, '-inf', '(' .. integer(now), 'BYSCORE', 'LIMIT', 0, SPARE)) do
    if name ~= channel then
      gone[#gone + 1] = name
    end
  end
  local is_in_line = redis.call('ZSCORE', turns_key, channel)
  line_length = redis.call('ZCARD', turns_key) - #gone + (is_in_line and 0 or 1)
  ahead = redis.call('ZCOUNT', turns_key, '-inf', '(' .. integer(place))
  if is_in_line and tonumber(is_in_line) < place then
    ahead = ahead - 1 -- the channel has lost its place
  end
  for _, name in ipairs(gone) do
    if tonumber(redis.call('ZSCORE', turns_key, name) or place) < place then
      ahead = ahead - 1
    end
  end
end

local own_slot = channel_slot(before)
local turn_slot = count > 0 and workspace_slot(ahead + before * line_length) or now
local reserved = own_slot <= now + LEAD and turn_slot <= now + HORIZON

local slot_time = math.max(own_slot, turn_slot)
if reserved then
  slot_time = math.max(channel_slot(0), count > 0 and workspace_slot(0) or now)
  if count > 0 then
    slot_time = unused(posts_key, slot_time)
  end
end
local estimate = slot_time - now
if estimate > max_wait then
  return { 0, estimate, estimate }
end
local wait = estimate
if reserved then
  tat = math.max(tat, slot_time) + interval
  askers[asker] = nil
else
  wait = math.max(SHORTEST, math.ceil((estimate - (own_slot > turn_slot and LEAD or HORIZON)) / 2))
  if before == 0 and not is_due then
    wait = own_slot - now - LEAD / 2 -- nothing but the time is ahead of it
  end
  askers[asker].counts_until = now + wait + GRACE
end

local spaces, counts, waits = reserved and interval > 0, reserved and count > 0, not reserved and count > 0 and is_due
if spaces then
  check_rights(paces_key, farthest)
end
if counts then
  check_rights(posts_key, farthest)
end
if count > 0 then
  check_rights(turns_key, farthest)
  check_rights(asked_key, farthest)
end
local writes_askers = not reserved or askers_text ~= NOBODY
if writes_askers then
  check_askers(askers_key, askers_text)
end

local trim = new_trimmer()
if spaces then
  record_time(trim, paces_key, channel, tat, now)
end
if counts then
  add_request(trim, posts_key, now + wait, window, now)
end
if waits then
  redis.call('ZADD', asked_key, integer(until_front_asks(askers)), channel)
  redis.call('ZADD', turns_key, integer(place), channel)
  local last = redis.call('ZRANGE', asked_key, -1, -1, 'WITHSCORES')[2]
  redis.call('PEXPIRE', asked_key, milliseconds(tonumber(last) - now))
  redis.call('PEXPIRE', turns_key, milliseconds(tonumber(last) - now))
elseif count > 0 then
  gone[#gone + 1] = channel
end
if #gone > 0 then
  redis.call('ZREM', turns_key, unpack(gone))
  redis.call('ZREM', asked_key, unpack(gone))
end
if writes_askers then
  save_askers(askers_key, waits and place or 0, askers, now)
end
return { reserved and 1 or 0, wait, estimate }
