-- flaps.lua: keys that change between firing and resolved again and again.
--
-- A book has a field for each key that fires or is resolved: the name of the pair and three line feeds. Its value is the kind %, then
-- numbers with blanks between them: 1 if the key is flapping, 1 if it fires, the version of the newest event that counts, then the versions
-- of the newest changes, the oldest first. A version orders the events of a key, and holds the millisecond in which the event was stored.
--
-- The changes are a sliding log with room for as many changes as make a key flap. A flapping key stays so until a report has the line that it
-- is steady. Without an open message there is no such report: then the key is calm again when it has not changed for a window.

local FLAP = '%'

-- How much longer than the window a key is remembered that is not flapping. A book that is full forgets these keys first.
local CALM_KEPT = 3600 * SECOND

-- The rule for flapping: the number of changes, and the window in milliseconds. Without a number, no key is flapping.
local function new_flaps(count, window, kept)
  return { count = count, window = window * VERSIONS, calm_kept = window * 1000 + CALM_KEPT, kept = kept }
end

local function flap_of(pair)
  return pair .. '\n\n\n'
end

-- Returns the state of a key; nil if it is not remembered.
local function read_flap(book, pair)
  local text = pair_text(read_pair(book, flap_of(pair)), FLAP)
  if not text then
    return nil
  end
  local flap = { changes = {} }
  for number in string.gmatch(text, '%d+') do
    flap.changes[#flap.changes + 1] = tonumber(number)
  end
  flap.flapping, flap.fires = table.remove(flap.changes, 1) == 1, table.remove(flap.changes, 1) == 1
  flap.version = table.remove(flap.changes, 1)
  return flap
end

local function put_flap(flaps, book, pair, flap)
  local texts = { FLAP .. (flap.flapping and 1 or 0), flap.fires and 1 or 0, integer(flap.version) }
  for _, version in ipairs(flap.changes) do
    texts[#texts + 1] = integer(version)
  end
  put_pair(book, flap_of(pair), table.concat(texts, ' '), book.now + (flap.flapping and flaps.kept or flaps.calm_kept))
end

-- Counts an event of a key, and returns whether the key is flapping. An event that was stored before the newest one changes nothing. The first
-- event of a key is a change only if it resolves an open message. Without one, a resolved event counts only if the key fires: otherwise its
-- firing event may come later.
local function count_change(flaps, book, pair, fires, stored, is_open)
  local flap = read_flap(book, pair)
  if not fires and not is_open and not (flap and flap.fires) then
    return false
  end
  flap = flap or { flapping = false, fires = true, version = 0, changes = {} }
  if stored <= flap.version then
    return flap.flapping
  end
  local changes = flap.changes
  local before, changed = changes[#changes] or 0, flap.fires ~= fires
  if changed then
    changes[#changes + 1] = stored
    while #changes > flaps.count do -- more than one if the number has been lowered
      table.remove(changes, 1)
    end
  end
  if changed and #changes == flaps.count and stored - changes[1] < flaps.window then
    flap.flapping = true
  elseif not is_open and stored - before >= flaps.window then
    flap.flapping = false
  end
  flap.fires, flap.version = fires, stored
  put_flap(flaps, book, pair, flap)
  return flap.flapping
end
