// Swagger UI in the theme of the page. Its requests have the session of the page, so they also send its CSRF token.

const dark = matchMedia("(prefers-color-scheme: dark)");

function applyTheme() {
  const { theme } = document.documentElement.dataset;
  document.documentElement.classList.toggle("dark-mode", theme ? theme === "dark" : dark.matches);
}

function withSession(request) {
  const csrf = document.querySelector('meta[name="csrf-token"]').content;
  if (csrf && new URL(request.url, location.href).origin === location.origin) request.headers["X-CSRF-Token"] = csrf;
  return request;
}

applyTheme();
document.addEventListener("trainyard:theme", applyTheme);
window.SwaggerUIBundle({
  url: "/openapi.json",
  dom_id: "#swagger-ui",
  deepLinking: true,
  docExpansion: "none",
  filter: true,
  requestInterceptor: withSession,
  validatorUrl: null,
});
