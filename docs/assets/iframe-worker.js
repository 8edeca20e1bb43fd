// Web workers for pages opened from disk, where browsers refuse real ones: the worker's script runs in a hidden frame.
// The theme's search is a worker. Its plugin `offline` would load such a file from another host.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.waiting = [];
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.srcdoc = "<!doctype html>";
      frame.addEventListener("load", () => this.start(frame, new URL(url, document.baseURI)), { once: true });
      document.body.append(frame);
    }

    start(frame, url) {
      const scope = frame.contentWindow;
      scope.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }));
      const script = scope.document.createElement("script");
      script.addEventListener("load", () => {
        this.scope = scope;
        this.waiting.splice(0).forEach(data => this.postMessage(data));
      });
      script.src = url.href;
      scope.document.body.append(script);
    }

    postMessage(data) {
      if (this.scope) this.scope.dispatchEvent(new MessageEvent("message", { data }));
      else this.waiting.push(data);
    }
  };
}
