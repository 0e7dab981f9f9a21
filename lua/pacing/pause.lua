-- pause.lua: pauses a channel, the updates or the look-ups, for all instances. A longer pause in force stays. No burst follows a pause.
--
-- If two channels are limited within a second, it is the workspace that is limited. Then the workspace is paused too, for the
-- shorter one of the two pauses: the longer one may be the channel's own.
--
-- KEYS
--   1   calls    sorted set: nonce of a call that granted something -> its time
--   2   pauses   sorted set: channel -> end of its pause
--   3   paces    sorted set: channel -> its TAT (see pace.lua)
--   4   limited  string: time and end of the newest pause of a channel that Slack limited, and the channel
--
-- ARGV
--   channel, or name of what is paused beside channels (lib/destinations.lua); duration, how far the TAT may run ahead of the time
--   (see pace.lua), interval of a channel (all microseconds); why (0: Slack limited a request, 1: the channel refuses messages).
--   A duration of 0 pauses nothing.
--
-- Returns the remaining pause of what is named, and that of the workspace (microseconds).
--
-- Errors: WRONGTYPE and NOPERM are raised before anything is written.

--@include lib/records lib/destinations

local calls_key, pauses_key, paces_key, limited_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local name, duration, tolerance, interval = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local is_limited = ARGV[5] == '0'

local now = deployment_time(calls_key)
local is_channel = name ~= UPDATES and name ~= LOOKUPS and name ~= WORKSPACE
local pause_end = math.max(recorded_time(pauses_key, name, now + MOST_AHEAD), now + duration)
local workspace_end = recorded_time(pauses_key, WORKSPACE, now + MOST_AHEAD)
local tat = math.max(recorded_tat(paces_key, name, pause_end, tolerance, interval), pause_end + tolerance)
local before = redis.call('GET', limited_key) or ''
local time, ends, other = string.match(before, '^(%d+) (%d+) (.*)$')
local pauses_workspace = duration > 0 and is_channel and is_limited and time and other ~= name and math.abs(now - tonumber(time)) <= SECOND
if pauses_workspace then
  workspace_end = math.max(workspace_end, math.min(tonumber(ends), now + duration))
end

if duration == 0 then
  return { pause_end - now, math.max(0, workspace_end - now) }
end

local trim = new_trimmer()
check_rights(pauses_key, duration)
if is_channel and is_limited then
  redis.call('SET', limited_key, before, before == '' and 'XX' or 'NX') -- shows a missing right
end
if is_channel and tolerance > 0 then
  check_rights(paces_key, duration + tolerance)
  record_time(trim, paces_key, name, tat, now)
end
record_time(trim, pauses_key, name, pause_end, now)
if pauses_workspace then
  record_time(trim, pauses_key, WORKSPACE, workspace_end, now)
end
if is_channel and is_limited then
  redis.call('SET', limited_key, integer(now) .. ' ' .. integer(now + duration) .. ' ' .. name, 'PX', milliseconds(2 * SECOND))
end
return { pause_end - now, math.max(0, workspace_end - now) }
