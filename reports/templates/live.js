// Only in a report that `runner report --watch` rebuilds: loads the page again when the report has changed, and
// says so when nobody rebuilds it any more.
(() => {
  "use strict";
  const { live, version, seconds, patience } = document.currentScript.dataset;
  const begun = Date.now();
  let sign = null; // the watch's last sign of life
  let heard = null; // when it was seen to change
  let notice = null;

  // A script, because a page from file:// may not fetch.
  function look() {
    const script = document.createElement("script");
    script.src = `${live}?${Date.now()}`;
    script.onload = () => {
      script.remove();
      if (window.reportVersion !== version) location.reload();
      else if (watched()) wait();
    };
    script.onerror = gone;
    document.head.append(script);
  }

  function wait() {
    setTimeout(look, 1000 * Number(seconds));
  }

  // The watch is over: the page that lies there now does not look. One that does was left by a watch that died.
  function gone() {
    const mark = `${live} of ${version} is gone`;
    if (window.name === mark) return tell("");
    window.name = mark;
    location.reload();
  }

  // A sign that changes is one of life, whatever the clocks of the two machines say. The first that a page sees
  // is as old as its own clock says; where that is too old, it waits for another one all the same.
  function watched() {
    const [time, every] = window.reportSign ?? [begun / 1000, 0];
    const longest = 1000 * (3 * every + Number(patience));
    if (sign !== null && time !== sign) heard = Date.now();
    sign = time;
    const silent = Date.now() - (heard ?? 1000 * time) > longest;
    tell(silent ? ` since ${new Date(1000 * time).toLocaleString()}` : null);
    return Date.now() - (heard ?? begun) <= longest;
  }

  function tell(since) {
    notice?.remove();
    notice = null;
    if (since === null) return;
    notice = document.createElement("p");
    notice.className = "warning unwatched";
    notice.setAttribute("role", "status");
    notice.textContent =
      `This report is no longer rebuilt: runner report --watch has given no sign of life${since}. ` +
      "Build it again for what has ended since.";
    (document.querySelector("main") ?? document.body).prepend(notice);
  }

  wait();
})();
