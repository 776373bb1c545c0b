"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const wish = matchMedia("(prefers-color-scheme: dark)");
  let dark = wish.matches;
  let shown = data.states.findIndex((state) => state.given);
  const drawn = {};

  // Colours of a light picture become those of a dark one; texts stay as they are.
  function coloured(value, key = "") {
    if (Array.isArray(value)) return value.map((one) => coloured(one, key));
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([name, one]) => [name, coloured(one, name)]));
    }
    if (!dark || typeof value !== "string" || !/color$/i.test(key)) return value;
    const found = data.dark[value.slice(0, 7)];
    return found ? found + value.slice(7) : value;
  }

  // "%.1f GB" as a function: ECharts wants one, Streamlit a text.
  function formatting(option) {
    for (const one of [option.tooltip, ...option.series.map((series) => series.tooltip)]) {
      if (one && typeof one.valueFormatter === "string") {
        const [, decimals, unit] = one.valueFormatter.match(/^%\.(\d)f ?(.*)$/);
        const suffix = " " + unit.replace("%%", "%");
        one.valueFormatter = (value) => (value == null ? "–" : Number(value).toFixed(+decimals) + suffix);
      }
    }
    return option;
  }

  function at(name) {
    const option = structuredClone(name === "policies" && shown >= 0 ? state().bars : data.charts[name].option);
    if (shown >= 0 && !state().given) {
      if (name === "memory") refill(option);
      if (name === "curves" || name === "misses") {
        const lines = option.series[option.series.length - 1].markLine;
        lines.data = [...state().you[name], ...lines.data.filter((line) => !line.label.formatter.startsWith("you"))];
      }
    }
    if (name === "policies" && shown >= 0 && state().given) return structuredClone(data.charts[name].option);
    return option;
  }

  const state = () => data.states[shown];

  // What lies above the budget is drawn anew: no more than a maximum per step.
  function refill(option) {
    const marks = option.series[option.series.length - 1];
    Object.assign(marks, structuredClone(state().memory));
    const above = option.series.find((series) => series.name === "above the budget");
    const line = marks.markLine && marks.markLine.data[0];
    if (above && line) {
      above.areaStyle.origin = line.yAxis;
      above.data = marks.data.map(([step, total]) => [
        step, Math.max(total, line.yAxis), +Math.max(total - line.yAxis, 0).toFixed(3),
      ]);
    }
  }

  // Squares of a heatmap are as large as its cells, which are as wide as the page allows.
  function sized(option, place) {
    for (const series of option.series.filter((one) => one.cells)) {
      const { left, right, top, bottom } = option.grid;
      series.symbolSize = [
        (place.clientWidth - left - right) / option.xAxis.data.length,
        (place.clientHeight - top - bottom) / option.yAxis.data.length,
      ];
    }
    return option;
  }

  function draw(name) {
    const place = document.getElementById(name);
    drawn[name].setOption(sized(coloured(formatting(at(name))), place), { notMerge: true });
  }

  function drawAll() {
    for (const name of Object.keys(drawn)) draw(name);
  }

  for (const [name, chart] of Object.entries(data.charts)) {
    const place = document.getElementById(name);
    place.style.height = chart.height + "px";
    drawn[name] = echarts.init(place, null, { renderer: "svg" });
    draw(name);
    new ResizeObserver(() => {
      drawn[name].resize();
      if (name === "scores") draw(name);
    }).observe(place);
  }
  function themed(now) {
    if (dark !== now) {
      dark = now;
      drawAll();
    }
  }
  wish.addEventListener("change", () => themed(wish.matches));
  addEventListener("beforeprint", () => {
    for (const one of document.querySelectorAll("details")) one.open = true;
    themed(false);
  });
  addEventListener("afterprint", () => themed(wish.matches));

  const slider = document.getElementById("budget");
  if (!slider) return;
  document.querySelector(".what-if").hidden = false;
  const back = document.getElementById("back");
  function move() {
    shown = +slider.value;
    for (const one of document.querySelectorAll("[data-budget]")) one.textContent = state().budget;
    for (const one of document.querySelectorAll("[data-short]")) one.textContent = state().short;
    slider.setAttribute("aria-valuetext", state().budget);
    document.getElementById("what-if").textContent = state().text;
    back.disabled = Boolean(state().given);
    for (const name of ["memory", "policies", "curves", "misses"]) if (drawn[name]) draw(name);
  }
  slider.addEventListener("input", move);
  back.addEventListener("click", () => {
    slider.value = data.states.findIndex((one) => one.given);
    move();
    slider.focus();
  });
})();
