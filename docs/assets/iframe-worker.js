// The site's search runs in a worker, and a page opened from disk may start none: there, a hidden frame does its work.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super()
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      this.ready = new Promise((resolve) => this.frame.addEventListener("load", resolve, { once: true }))
      this.frame.srcdoc = `<script>postMessage = (data) => frameElement.answer(data)</` + `script>
        <script src="${new URL(address, location)}"></` + `script>`
      this.frame.answer = (data) => this.dispatchEvent(new MessageEvent("message", { data }))
      document.body.append(this.frame)
    }

    postMessage(data) {
      this.ready.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })))
    }

    terminate() {
      this.frame.remove()
    }
  }
}
