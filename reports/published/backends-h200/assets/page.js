// Draws the page's figures from the JSON beside them, and fits its tables to its width. Fetches nothing.
(() => {
  "use strict";
  const options = {
    mode: "vega-lite", renderer: "svg", actions: false, defaultStyle: false, tooltip: { theme: "page" },
  };

  async function draw(figure) {
    const spec = JSON.parse(figure.querySelector('script[type="application/json"]').textContent);
    const chart = figure.querySelector(".chart");
    try {
      await window.vegaEmbed(chart, spec, options);
      const svg = chart.querySelector("svg");
      // One image with one description, in place of one for every mark: the table below has their values.
      svg.setAttribute("role", "img");
      svg.setAttribute("aria-label", spec.description);
      svg.firstElementChild.setAttribute("aria-hidden", "true");
      walkable(figure, chart);
      figure.dataset.state = "drawn";
    } catch (error) {
      figure.dataset.state = "failed";
      chart.textContent = "This figure could not be drawn here; its SVG and CSV are below.";
      console.error(error);
    }
  }

  // The arrow keys lead from mark to mark, from left to right, and show what the mouse would.
  function walkable(figure, chart) {
    const marks = () => [...chart.querySelectorAll("svg path")].filter((path) => path.__data__?.tooltip && path.__data__.mark.marktype !== "line");
    if (!marks().length) return;
    const steps = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, Home: -Infinity, End: Infinity };
    let place = -1;
    Object.assign(chart, { tabIndex: 0, role: "group", ariaLabel: "Marks of the figure: arrow keys show their values" });
    chart.addEventListener("keydown", (event) => {
      if (!(event.key in steps)) return;
      event.preventDefault();
      const all = marks().map((mark) => ({ mark, box: mark.getBoundingClientRect() })).sort((a, b) => a.box.x - b.box.x);
      place = Math.min(Math.max(place + steps[event.key], 0), all.length - 1);
      point(figure, all[place]);
    });
    chart.addEventListener("blur", () => chart.querySelector("svg").dispatchEvent(new PointerEvent("pointerout", { bubbles: true })));
  }

  function point(figure, { mark, box }) {
    const where = { bubbles: true, clientX: box.x + box.width / 2, clientY: box.y + box.height / 2 };
    for (const type of ["pointerover", "pointermove"]) mark.dispatchEvent(new PointerEvent(type, where));
    const rows = [...document.querySelectorAll("#vg-tooltip-element tr")];
    figure.querySelector("[role=status]").textContent = rows.map((row) => row.innerText.replace(/\s+/g, " ")).join("; ");
  }

  // A column of a table that is too wide shows whole or not at all: part of a number would read as another number.
  function fit(region) {
    const table = region.querySelector("table");
    const { left, right } = region.getBoundingClientRect();
    const heads = [...(table?.tHead?.rows[0].cells ?? [])].map((cell) => ({ cell, box: cell.getBoundingClientRect() }));
    const wide = region.scrollWidth > region.clientWidth + 1;
    region.tabIndex = wide ? 0 : -1;
    if (!heads.length) return;
    const start = getComputedStyle(heads[0].cell).position === "sticky" ? heads[0].box.right : left;
    const room = right - start;
    const outside = heads.map(({ cell, box }, place) => {
      const stuck = place === 0 && start > left;
      return wide && !stuck && box.width <= room && (box.left < start - 1 || box.right > right + 1);
    });
    const count = outside.filter(Boolean).length;
    region.dataset.more = count ? `Scroll sideways for ${count} more column${count > 1 ? "s" : ""}` : "";
    for (const [place, hidden] of outside.entries()) {
      if (heads[place].cell.classList.contains("outside") === hidden) continue;
      for (const row of table.rows) row.cells[place]?.classList.toggle("outside", hidden && row.cells[place].colSpan === 1);
    }
  }

  document.querySelectorAll("figure[data-chart]").forEach(draw);
  const sizes = new ResizeObserver((entries) => entries.forEach(({ target }) => fit(target)));
  for (const region of document.querySelectorAll(".table")) {
    sizes.observe(region);
    region.addEventListener("scroll", () => fit(region), { passive: true });
  }
})();
