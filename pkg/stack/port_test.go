package stack

import "testing"

// Programs of tutorials have their port in the source; one that reads PORT, or whose port is not certain, has the default.
func TestPortOfTheSource(t *testing.T) {
	const (
		node  = "-- package.json --\n{\"scripts\":{\"start\":\"node --enable-source-maps ./server\"}}\n-- server.js --\nconst app = require('express')()\n"
		gomod = "-- go.mod --\nmodule x.example/shop\n\ngo 1.23\n"
		cargo = "-- Cargo.toml --\n[package]\nname = \"shop\"\nversion = \"0.1.0\"\n-- src/main.rs --\n"
	)
	says := []string{"server.js listens on port 3000 and does not read PORT", "service web listens on port 3000"}
	silent := []string{"!does not read PORT"}
	checkPlans(t, "node", []planTest{
		{"constant", node + "const port = 3000\nconst db = process.env.DATABASE_URL\napp.listen(port, () => console.log(`on ${port}`))\n", nil, says, "web:3000:"},
		{"capital constant", node + "const PORT = 3000;\napp.listen(PORT)\n", nil, says, "web:3000:"},
		{"literal", node + "app.listen(3000)\n", nil, says, "web:3000:"},
		{"option", node + "app.listen({ port: 3000, host: '0.0.0.0' })\n", nil, says, "web:3000:"},
		{"default port", node + "app.listen(8080)\n", nil, silent, "web:8080:"},
		{"app.toml decides", node + "app.listen(3000)\n-- app.toml --\n[services.web]\nport = 4000\n", nil, silent, "web:4000:"},
		{"Procfile", node + "app.listen(3000)\n-- Procfile --\nweb: node server.js\n", nil, says, "web:3000:exec_node_server.js"},
		{"another program", node + "app.listen(3000)\n-- Procfile --\nweb: npm run other\n", nil, silent, "web:8080:exec_npm_run_other"},
		{"variable", node + "const port = process.env.PORT || 3000\napp.listen(port)\n", nil, silent, "web:8080:"},
		{"other variable", node + "const port = 3000\napp.listen(process.env.APP_PORT ?? port)\n", nil, silent, "web:8080:"},
		{"destructured", node + "const { PORT } = process.env\nconst port = 3000\napp.listen(PORT)\n", nil, silent, "web:8080:"},
		{"of another module", node + "const port = config.port || 3000\napp.listen(port)\n", nil, silent, "web:8080:"},
		{"two", node + "app.listen(3000)\nmetrics.listen(config.metrics)\n", nil, silent, "web:8080:"},
		{"privileged", node + "app.listen(80)\n", nil, silent, "web:8080:"},
		{"not a listener", node + "const port = 3000\n", nil, silent, "web:8080:"},
	})
	checkPlans(t, "go", []planTest{
		{"go", gomod + "-- main.go --\npackage main\n\nfunc main() { http.ListenAndServe(\":3000\", nil) }\n", nil, []string{"main.go listens on port 3000"}, "web:3000:"},
		{"go, gin in cmd", gomod + "-- cmd/api/main.go --\npackage main\n\nfunc main() { r.Run(\":3000\") }\n", nil, []string{"cmd/api/main.go listens"}, "web:3000:"},
		{"go, variable", gomod + "-- main.go --\npackage main\n\nfunc main() { a := \":3000\"; if p := os.Getenv(\"PORT\"); p != \"\" { a = p }; http.ListenAndServe(\":3000\", nil) }\n", nil, silent, "web:8080:"},
		{"go, loopback for profiles", gomod + "-- main.go --\npackage main\n\nfunc main() { go http.ListenAndServe(\"localhost:6060\", nil); run() }\n", nil, silent, "web:8080:"},
		{"go, profiles and the app", gomod + "-- main.go --\npackage main\n\nfunc main() { go http.ListenAndServe(\":6060\", nil); s.ListenAndServe() }\n", nil, silent, "web:8080:"},
	})
	checkPlans(t, "rust", []planTest{
		{"axum", cargo + "fn main() { tokio::net::TcpListener::bind(\"0.0.0.0:3000\") }\n", nil, []string{"src/main.rs listens on port 3000"}, "web:3000:"},
		{"actix", cargo + "fn main() { HttpServer::new(app).bind((\"0.0.0.0\", 3000))?.run() }\n", nil, nil, "web:3000:"},
		{"axum, variable", cargo + "fn main() { let port = std::env::var(\"PORT\"); TcpListener::bind(\"0.0.0.0:3000\") }\n", nil, silent, "web:8080:"},
	})
}
