-- askers.lua: who waits for a channel's next post.
--
-- A string per channel: its place in the line of the workspace (0 without a place), then for each asker its name, its order and
-- the time until which it counts, with blanks between them. An asker that does not ask again by then counts no more. A little
-- later the channel loses its place too.

-- How much later than planned an asker may ask again and still count.
local GRACE = SECOND

-- What is stored of a channel that nobody waits for.
local NOBODY = '0'

-- Returns the place, the askers that count (name -> { order, until }), and what is stored.
local function load_askers(key, now)
  local text = redis.call('GET', key) or NOBODY
  local askers, last = {}, 0
  for name, order, counts_until in string.gmatch(text, ' (%S+) (%d+) (%d+)') do
    last = math.max(last, tonumber(counts_until))
    if tonumber(counts_until) >= now then
      askers[name] = { order = tonumber(order), counts_until = tonumber(counts_until) }
    end
  end
  return last + GRACE >= now and tonumber(string.match(text, '^%d+')) or 0, askers, text
end

-- Reports whether one asker goes before another.
local function goes_before(name, asker, other_name, other)
  return asker.order < other.order or asker.order == other.order and name < other_name
end

-- Returns how many askers go before one of them.
local function count_before(askers, name)
  local before = 0
  for other_name, other in pairs(askers) do
    if goes_before(other_name, other, name, askers[name]) then
      before = before + 1
    end
  end
  return before
end

-- Returns until when the asker counts that goes before all others.
local function until_front_asks(askers)
  for name, asker in pairs(askers) do
    if count_before(askers, name) == 0 then
      return asker.counts_until
    end
  end
end

-- Shows a missing right to SET before anything is written.
local function check_askers(key, text)
  redis.call('SET', key, text, redis.call('GET', key) and 'NX' or 'XX')
end

local function save_askers(key, place, askers, now)
  local parts, last = { integer(place) }, now
  for name, asker in pairs(askers) do
    parts[#parts + 1] = name .. ' ' .. integer(asker.order) .. ' ' .. integer(asker.counts_until)
    last = math.max(last, asker.counts_until)
  end
  redis.call('SET', key, table.concat(parts, ' '), 'PX', milliseconds(last - now + GRACE))
end
