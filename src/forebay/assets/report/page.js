"use strict";
(() => {
  const page = JSON.parse(document.getElementById("data").textContent);
  const dashes = [[], [7, 4], [2, 4], [10, 4, 2, 4]];
  const markers = ["solid", "dashed", "dotted", "double"];
  const timeSteps = [0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800,
    43200, 86400, 172800, 432000, 864000];
  const byteSteps = Array.from({ length: 50 }, (_, power) => 2 ** power);
  const height = 210;
  const printWidth = 640;
  let axis = "time";
  let drawn = [];

  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  function figure(value) {
    if (value === 0) return "0";
    const size = Math.abs(value);
    if (size >= 1e5) return value.toExponential(1);
    if (size >= 1000) return Math.round(value).toLocaleString("en-US");
    return size < 1e-3 ? value.toExponential(1) : String(Number(value.toPrecision(3)));
  }
  function duration(value) {
    if (value < 0.0995) return value === 0 ? "0 s" : Number((1000 * value).toPrecision(3)) + " ms";
    if (value < 60) return Number(value.toPrecision(3)) + " s";
    if (value < 3600) return Math.floor(value / 60) + " min" + (value % 60 ? " " + Math.round(value % 60) + " s" : "");
    return Number((value / 3600).toPrecision(3)) + " h";
  }
  function bytes(value) {
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let index = 0;
    while (value >= 1024 && index < units.length - 1) { value /= 1024; index += 1; }
    return Number(value.toPrecision(3)) + " " + units[index];
  }
  const forms = { number: figure, percent: (v) => Number((100 * v).toPrecision(3)) + " %", seconds: duration, bytes };

  // Lines of different tables share one horizontal axis; where a table has no value, its line goes on.
  function join(chart) {
    const tables = new Map();
    const slots = [];
    for (const line of chart.lines) {
      const source = page.runs[line.run][line.source];
      const key = line.run + line.source;
      if (!tables.has(key)) tables.set(key, [source[axis]]);
      const table = tables.get(key);
      for (const [name, end] of [[line.column, ""], [line.low, "lower end"], [line.high, "upper end"]]) {
        if (name) { slots.push({ key, at: table.length, line, end }); table.push(source[name]); }
      }
    }
    const keys = [...tables.keys()];
    const sorted = keys.map((key) => {
      const table = tables.get(key);
      const order = table[0].map((_, i) => i).filter((i) => table[0][i] !== null)
        .sort((a, b) => table[0][a] - table[0][b]);
      return table.map((column) => order.map((i) => column[i]));
    });
    const starts = new Map();
    let next = 1;
    keys.forEach((key, i) => { starts.set(key, next - 1); next += sorted[i].length - 1; });
    const joined = uPlot.join(sorted);
    return { data: [joined[0], ...slots.map((slot) => joined[starts.get(slot.key) + slot.at])], slots };
  }

  function range(chart) {
    return (plot, least, largest) => {
      const marks = chart.marks.map((mark) => mark.value);
      let low = Math.min(least ?? 0, ...marks);
      let high = Math.max(largest ?? 1, ...marks);
      const room = (high - low || Math.abs(high) || 1) * 0.08;
      low = chart.low === null ? low - room : Math.min(chart.low, low);
      high = chart.high === null ? high + (marks.length ? 2 * room : room) : Math.max(chart.high, high);
      return [low, high > low ? high : low + 1];
    };
  }

  function overlay(chart, slots) {
    return (plot) => {
      const { ctx } = plot;
      const ratio = devicePixelRatio || 1;
      ctx.save();
      ctx.font = 11 * ratio + "px system-ui, sans-serif";
      for (const mark of chart.marks) {
        const y = plot.valToPos(mark.value, "y", true);
        ctx.strokeStyle = ctx.fillStyle = color("--bad");
        ctx.lineWidth = 1.5 * ratio;
        ctx.setLineDash([6 * ratio, 4 * ratio]);
        ctx.beginPath();
        ctx.moveTo(plot.bbox.left, y);
        ctx.lineTo(plot.bbox.left + plot.bbox.width, y);
        ctx.stroke();
        const right = plot.bbox.left + plot.bbox.width - 4 * ratio;
        const wide = ctx.measureText(mark.label).width;
        ctx.fillStyle = color("--card");
        ctx.fillRect(right - wide - 3 * ratio, y - 17 * ratio, wide + 6 * ratio, 14 * ratio);
        ctx.fillStyle = color("--bad");
        ctx.textAlign = "right";
        ctx.fillText(mark.label, right, y - 6 * ratio);
      }
      ctx.setLineDash([]);
      slots.forEach((slot, i) => {
        if (slot.end || !slot.line.low) return;
        ctx.strokeStyle = color("--c" + slot.line.color % 8);
        ctx.lineWidth = 1.5 * ratio;
        plot.data[0].forEach((x, at) => {
          const low = plot.data[i + 2][at];
          const high = plot.data[i + 3][at];
          if (low == null || high == null) return;
          const left = plot.valToPos(x, "x", true);
          ctx.beginPath();
          ctx.moveTo(left, plot.valToPos(low, "y", true));
          ctx.lineTo(left, plot.valToPos(high, "y", true));
          ctx.stroke();
        });
      });
      ctx.restore();
    };
  }

  // Lines of other tables have no value just there: each shows its nearest one.
  function nearest(plot, at, i) {
    const values = plot.data[at];
    for (let away = 0; away < values.length; away += 1) {
      if (values[i - away] != null) return i - away;
      if (values[i + away] != null) return i + away;
    }
    return i;
  }

  function options(chart, slots, width) {
    const write = forms[chart.form];
    const axes = { stroke: color("--soft"), font: "12px system-ui, sans-serif",
      grid: { stroke: color("--line"), width: 1 }, ticks: { stroke: color("--line"), width: 1 } };
    const over = axis === "time"
      ? { incrs: timeSteps, values: (plot, ticks) => ticks.map(duration), space: 84 }
      : { incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 1e6],
        values: (plot, ticks) => ticks.map(figure), space: 60 };
    const say = (value) => (value == null ? "–" : write(value));
    const series = slots.map((slot) => slot.end
      ? { label: slot.line.label + ", " + slot.end, value: (plot, value) => say(value), stroke: "transparent", width: 0, points: { show: false }, class: "u-hide" }
      : { label: slot.line.label, stroke: color("--c" + slot.line.color % 8),
        width: slot.line.low ? 1 : 2, dash: slot.line.low ? [] : dashes[slot.line.dash % dashes.length],
        dashed: slot.line.low ? 0 : slot.line.dash, spanGaps: true,
        value: (plot, value, at, i) => say(value)
          + (slot.line.low && i != null && value != null ? " (" + say(plot.data[at + 1][i]) + " to " + say(plot.data[at + 2][i]) + ")" : ""),
        points: { show: slot.line.low ? true : undefined, size: slot.line.low ? 8 : 5 } });
    return {
      width, height,
      legend: { markers: { dash: (plot, at) => markers[(series[at - 1]?.dashed ?? 0) % markers.length] } },
      cursor: { sync: { key: "forebay" }, drag: { x: true, y: false }, dataIdx: nearest },
      scales: { x: { time: false, range: (plot, least, most) => [axis === "time" && least === plot.data[0][0] ? 0 : least, most > least ? most : least + 1] }, y: { range: range(chart) } },
      axes: [{ ...axes, ...over, size: 34 },
        { ...axes, values: (plot, ticks) => ticks.map(write), ...(chart.form === "bytes" ? { incrs: byteSteps } : {}), size: chart.form === "number" ? 52 : 66 }],
      series: [{ label: axis === "time" ? "time" : "step", value: (plot, value) => (value == null ? "–" : axis === "time" ? duration(Math.round(10 * value) / 10) : figure(Math.round(value))) }, ...series],
      hooks: { draw: [overlay(chart, slots)] },
    };
  }

  function draw(fixedWidth) {
    drawn.forEach((plot) => plot.destroy());
    drawn = page.charts.map((chart) => {
      const place = document.querySelector('[data-chart="' + CSS.escape(chart.anchor) + '"]');
      const { data, slots } = join(chart);
      return new uPlot(options(chart, slots, fixedWidth || place.clientWidth), data, place);
    });
    document.documentElement.dataset.drawn = String(drawn.length);
  }

  let pending = 0;
  const redraw = () => { clearTimeout(pending); pending = setTimeout(() => draw(), 60); };
  let width = innerWidth;
  addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; redraw(); } });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  addEventListener("beforeprint", () => draw(printWidth / 2));
  addEventListener("afterprint", () => draw());
  matchMedia("print").addEventListener("change", (event) => draw(event.matches ? printWidth / 2 : 0));

  const talks = document.getElementById("trajectories");
  const shown = document.getElementById("token");
  document.addEventListener("change", (event) => {
    const { name, value, checked } = event.target;
    if (name === "x") { axis = value; draw(); }
    if (name === "tint") talks.dataset.tint = value;
    if (name === "marks") talks.dataset.marks = checked ? "on" : "off";
  });
  function tell(event) {
    const token = event.target.closest ? event.target.closest(".said i") : null;
    shown.hidden = token === null;
    if (token === null) return;
    const { p, v, r } = token.dataset;
    const fate = r ? "not trained: " + r : "trained";
    shown.textContent = JSON.stringify(token.textContent) + " · probability " + Number(Math.exp(Math.min(p, 0)).toPrecision(2))
      + " · logprob " + p + " · version " + v + " · " + fate;
  }
  talks.addEventListener("pointerover", tell);
  talks.addEventListener("click", tell);

  draw();
})();
