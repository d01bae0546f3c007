/* SPDX-License-Identifier: Apache-2.0 */
/* Tables that sort, and treemaps. Without it the page has everything but the treemaps. */
"use strict";

function cellKey(row, column) {
  const cell = row.cells[column];
  const key = cell.dataset.key;
  return key === undefined ? cell.textContent.trim() : Number(key);
}

function compare(one, other) {
  if (typeof one === typeof other && typeof one === "number") return one - other;
  if (typeof one !== typeof other) return typeof one === "number" ? 1 : -1; /* n/a is least */
  return one.localeCompare(other, "en", { numeric: true });
}

function sortBy(table, heading, column) {
  const number = heading.classList.contains("number");
  const before = heading.getAttribute("aria-sort");
  const downwards = before === null ? number : before === "ascending";
  const body = table.tBodies[0];
  const rows = Array.from(body.rows, (row) => [cellKey(row, column), row]);
  rows.sort((a, b) => (downwards ? compare(b[0], a[0]) : compare(a[0], b[0])));
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", downwards ? "descending" : "ascending");
  body.append(...rows.map((pair) => pair[1]));
}

for (const table of document.querySelectorAll("table.sortable")) {
  Array.from(table.tHead.rows[0].cells).forEach((heading, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...heading.childNodes);
    heading.append(button);
    button.addEventListener("click", () => sortBy(table, heading, column));
  });
}

for (const place of document.querySelectorAll(".treemap")) {
  const figure = JSON.parse(document.getElementById(place.dataset.figure).textContent);
  const config = { responsive: true, displaylogo: false, displayModeBar: false };
  Plotly.newPlot(place, figure.data, figure.layout, config);
}
