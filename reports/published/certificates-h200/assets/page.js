// Draws every figure of the page from the JSON beside it. Fetches nothing.
(() => {
  "use strict";
  const options = { mode: "vega-lite", renderer: "svg", actions: false, defaultStyle: false, tooltip: { theme: "page" } };

  async function draw(figure) {
    const spec = JSON.parse(figure.querySelector('script[type="application/json"]').textContent);
    try {
      await window.vegaEmbed(figure.querySelector(".chart"), spec, options);
      figure.dataset.state = "drawn";
    } catch (error) {
      figure.dataset.state = "failed";
      figure.querySelector(".chart").textContent = "This figure could not be drawn here; its SVG and CSV are below.";
      console.error(error);
    }
  }

  document.querySelectorAll("figure[data-chart]").forEach(draw);
  // On paper nothing can be unfolded.
  window.addEventListener("beforeprint", () => document.querySelectorAll("details.left-out").forEach((d) => { d.open = true; }));
})();
