// The live view: member curves on the left, the device's utilization and memory on the right.

import { lasting } from "./page.js";
import { Store } from "./store.js";
import { View } from "./view.js";

/** @import { Model, Update } from "./types.d.ts" */

/** anywidget calls this once per model. */
export default () => {
  let store = new Store(() => {});
  return {
    initialize(/** @type {{ model: Model }} */ { model }) {
      store = new Store(() => model.send({ kind: "hello" }));
      model.on("msg:custom", (/** @type {Update} */ message, /** @type {DataView[]} */ buffers) => {
        store.take(message, buffers);
      });
      store.ask();
    },
    render: lasting(({ model, el, signal }) => { new View(model, store, el, signal); }),
  };
};
