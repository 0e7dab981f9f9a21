// Writes times in the reader's zone. Without a script they are in UTC.
"use strict";

// Within half a day of now a time needs no date.
const HALF_A_DAY = 12 * 60 * 60 * 1000;

// localize writes the times below a node.
function localize(node) {
	for (const time of node.querySelectorAll("time[datetime]")) {
		const at = new Date(time.dateTime);
		const day = Math.abs(at - Date.now()) < HALF_A_DAY ? "" : `${at.toLocaleDateString("en-GB", { day: "numeric", month: "short" })} `;
		time.textContent = day + clockOf(at);
	}
}

function clockOf(at) {
	return at.toLocaleTimeString("en-GB");
}

(() => {
	const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
	localize(document);
	document.getElementById("zone").textContent = zone;

	// The server writes the sentences of an answer. The cookie names the zone to it, and an answer without the cookie is asked for again.
	const cookie = `notifier-zone=${encodeURIComponent(zone)}`;
	const wasSet = document.cookie.includes(cookie);
	document.cookie = `${cookie}; SameSite=Strict`;
	const written = document.querySelector("[data-zone]")?.dataset.zone;
	if (written === undefined || written === zone) return;
	if (!wasSet && document.cookie.includes(cookie)) location.reload();
	else document.getElementById("zone").textContent = `${zone}, in sentences in ${written}`;
})();
