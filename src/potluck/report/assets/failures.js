// What went wrong or came late: failed jobs, stale answers.
chart("failures", () => {
  const groups = shown().filter((group) => group.failures.rounds.length);
  const words = groups.map((group) => {
    const total = group.failures.kinds.reduce((sum, [, count]) => sum + count, 0);
    return `${group.label}: ${spaced(total)} of ${spaced(group.failures.jobs)} jobs failed (${group.failures.kinds.map(([kind, count]) => `${kind} ${count}`).join(", ")}).`;
  });
  const totals = groups.flatMap((group) => group.failures.rounds.map(([, count]) => count));
  const traces = groups.map((group) => ({
    type: "bar", name: plain(group.label), x: group.failures.rounds.map(([round]) => round), y: group.failures.rounds.map(([, count]) => count),
    marker: bar(group), hovertemplate: "%{fullData.name}, round %{x}<br><b>%{y}</b> failed<extra></extra>",
  }));
  return {
    traces, layout: layout(axis("round"), axis("failed jobs", wholeNumbers(totals)), { barmode: "stack" }),
    caption: words.length ? words.join(" ") : "No job failed.",
    table: { head: ["round", "method", "failed"], rows: groups.flatMap((group) => group.failures.rounds.map(([round, count]) => [round, group.label, count])) },
  };
});

chart("staleness", () => {
  const groups = shown().filter((group) => group.staleness.some(([steps]) => steps > 0));
  const shares = groups.map((group) => {
    const total = group.staleness.reduce((sum, [, count]) => sum + count, 0);
    return group.staleness.map(([steps, count]) => [steps, count / total]);
  });
  const traces = groups.map((group, at) => ({
    type: "bar", name: plain(group.label), x: shares[at].map(([steps]) => steps), y: shares[at].map(([, share]) => share), marker: bar(group),
    hovertemplate: "%{fullData.name}<br>%{x} steps stale: <b>%{y:.1%}</b><extra></extra>",
  }));
  return {
    traces, layout: layout(axis("server steps since the client was asked"), axis("share of answers", { tickformat: ".0%", rangemode: "tozero" }), { barmode: "group" }),
    caption: groups.length ? "Staleness of the answers of asynchronous runs." : "Every answer was fresh: the server had not moved on since its client was asked.",
    table: { head: ["steps", "method", "share"], rows: groups.flatMap((group, at) => shares[at].map(([steps, share]) => [steps, group.label, percent(share, 1)])) },
  };
});
