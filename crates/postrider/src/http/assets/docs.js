// Shows our OpenAPI document: operations by tag, each with its parameters, body and answers.
"use strict";

const METHODS = ["get", "post", "put", "patch", "delete", "head"];

function element(name, text) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  return made;
}

/** A schema as an example-like outline: names with their types, a star for what is required. */
function outline(schema, schemas, seen, indent) {
  if (!schema) return "";
  if (schema.$ref) {
    const name = schema.$ref.split("/").pop();
    if (seen.includes(name)) return name;
    return outline(schemas[name], schemas, seen.concat(name), indent);
  }
  const parts = schema.oneOf || schema.anyOf || schema.allOf;
  if (parts) return parts.map((part) => outline(part, schemas, seen, indent)).join(" | ");
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" | ");
  const types = [].concat(schema.type || "any");
  const nullable = types.includes("null") ? " | null" : "";
  const type = types.find((one) => one !== "null");
  if (type === "array") return "[" + outline(schema.items, schemas, seen, indent) + "]" + nullable;
  if (type === "object" && schema.properties) {
    const required = schema.required || [];
    const inner = indent + "  ";
    const lines = Object.entries(schema.properties).map(
      ([name, value]) => inner + name + (required.includes(name) ? "*" : "") + ": " + outline(value, schemas, seen, inner),
    );
    return "{\n" + lines.join("\n") + "\n" + indent + "}" + nullable;
  }
  if (type === "object" && typeof schema.additionalProperties === "object")
    return "{ name: " + outline(schema.additionalProperties, schemas, seen, indent) + " }" + nullable;
  return (type || "null") + (schema.format ? " (" + schema.format + ")" : "") + nullable;
}

function bodyOf(holder) {
  const content = holder && holder.content;
  return content && content["application/json"] && content["application/json"].schema;
}

function operation(method, path, described, schemas) {
  const made = element("details");
  const title = element("summary");
  title.append(element("b", method.toUpperCase()), element("code", path));
  made.append(title, element("p", [described.summary, described.description].filter(Boolean).join("\n")));
  const parameters = described.parameters || [];
  if (parameters.length) {
    const table = element("table");
    const head = table.createTHead().insertRow();
    for (const name of ["Parameter", "In", "Type", ""]) head.append(element("th", name));
    const rows = table.createTBody();
    for (const parameter of parameters) {
      const row = rows.insertRow();
      row.insertCell().append(element("code", parameter.name + (parameter.required ? "*" : "")));
      row.insertCell().textContent = parameter.in;
      row.insertCell().textContent = outline(parameter.schema, schemas, [], "");
      row.insertCell().textContent = parameter.description || "";
    }
    made.append(table);
  }
  const body = bodyOf(described.requestBody);
  if (body) made.append(element("h4", "Body"), element("pre", outline(body, schemas, [], "")));
  for (const [status, answer] of Object.entries(described.responses)) {
    made.append(element("h4", status + (answer.description ? ": " + answer.description : "")));
    const shape = bodyOf(answer);
    if (shape) made.append(element("pre", outline(shape, schemas, [], "")));
  }
  return made;
}

async function show() {
  const document_ = await (await fetch("/openapi.json")).json();
  const schemas = (document_.components && document_.components.schemas) || {};
  const about = document.getElementById("about");
  about.textContent = "Version " + document_.info.version + ". " + (document_.info.description || "");
  const byTag = new Map();
  for (const [path, methods] of Object.entries(document_.paths))
    for (const method of METHODS)
      if (methods[method]) {
        const tag = (methods[method].tags || ["Other"])[0];
        if (!byTag.has(tag)) byTag.set(tag, []);
        byTag.get(tag).push(operation(method, path, methods[method], schemas));
      }
  const content = document.getElementById("content");
  for (const tag of [...byTag.keys()].sort()) content.append(element("h2", tag), ...byTag.get(tag));
}

show().catch((error) => {
  const about = document.getElementById("about");
  about.className = "bad";
  about.textContent = "The document could not be shown: " + error.message;
});
