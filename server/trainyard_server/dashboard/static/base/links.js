// Links that MLflow's client prints, such as /#/experiments/1/runs/job-12: the server gets nothing behind the #.
const TRACKED = /^#(\/experiments\/[\w.-]+(?:\/(?:runs|models)\/[\w.-]+)?)(?:[/?].*)?$/;

// The path of the page behind such a link; "" for anything else.
export function trackingPath(hash) {
  const match = TRACKED.exec(hash);
  return match ? `/mlflow${match[1]}` : "";
}

export function followTrackingLinks() {
  const follow = () => {
    const path = location.pathname === "/" ? trackingPath(location.hash) : "";
    if (path) location.replace(path);
  };
  addEventListener("hashchange", follow);
  follow();
}
