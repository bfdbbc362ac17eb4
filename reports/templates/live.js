// Only in a report that `runner report --watch` rebuilds: loads the page again when the report has changed.
(() => {
  "use strict";
  const { live, version, seconds } = document.currentScript.dataset;

  // A script, because a page from file:// may not fetch.
  function look() {
    const script = document.createElement("script");
    script.src = `${live}?${Date.now()}`;
    script.onload = () => {
      script.remove();
      if (window.reportVersion === version) wait();
      else location.reload();
    };
    script.onerror = () => location.reload(); // the watch is over: the page that lies there now does not look
    document.head.append(script);
  }

  function wait() {
    setTimeout(look, 1000 * Number(seconds));
  }

  wait();
})();
