package stack

import "testing"

func TestPythonPlans(t *testing.T) {
	checkPlans(t, "python", []planTest{
		{"python, flask", "-- requirements.txt --\nFlask==3.0\ngunicorn\n-- app.py --\nfrom flask import Flask\nserver = Flask(__name__)\n",
			[]string{"pip install -r requirements.txt", "gunicorn --bind 0.0.0.0:$PORT --threads 8 app:server", "!pip install gunicorn"}, []string{"gunicorn"}, "web:8080:"},
		{"python, flask without server", "-- requirements.txt --\nflask\n-- main.py --\nimport flask\napp = flask.Flask(__name__)\n", []string{"pip install gunicorn", "main:app"}, []string{"installed besides"}, "web:8080:"},
		{"python, factory", "-- requirements.txt --\nflask\n-- app.py --\ndef create_app():\n    return Flask(__name__)\n", []string{"'app:create_app()'"}, nil, "web:8080:"},
		{"python, fastapi", "-- requirements.txt --\nfastapi[standard]\nuvicorn[standard]>=0.30\n-- app/main.py --\napp: FastAPI = FastAPI()\n", []string{"uvicorn --host 0.0.0.0 --port $PORT app.main:app"}, []string{"uvicorn"}, "web:8080:"},
		{"python, django", "-- requirements.txt --\nDjango\n-- manage.py --\nimport django\n-- site1/wsgi.py --\n", []string{"gunicorn", "site1.wsgi"}, []string{"Django"}, "web:8080:"},
		{"python, included requirements", "-- requirements.txt --\n-r base.txt\n-- base.txt --\nflask\n-- app.py --\napp = Flask(__name__)\n", []string{"COPY requirements.txt base.txt ./"}, nil, "web:8080:"},
		{"python, editable", "-- requirements.txt --\n-e .\n-- app.py --\n", []string{"COPY . .\nRUN --mount=type=cache,target=/root/.cache/pip pip install"}, nil, "web:8080:"},
		{"python, pyproject", "-- pyproject.toml --\n[project]\ndependencies = [\"flask>=3\", \"x[y]~=1\"]\n[build-system]\n-- app.py --\napp = Flask(__name__)\n", []string{"pip install 'flask>=3' 'x[y]~=1'", "pip install --no-deps ."}, nil, "web:8080:"},
		{"python, uv", "-- pyproject.toml --\n[project]\ndependencies = [\"flask\"]\n-- uv.lock --\n-- app.py --\n", []string{"uv sync --frozen"}, []string{"uv"}, "web:8080:"},
		{"python, poetry", "-- pyproject.toml --\n[tool.poetry.dependencies]\npython = \"3\"\nflask = \"3\"\n-- poetry.lock --\n-- app.py --\n", []string{"poetry install --only main"}, nil, "web:8080:"},
		{"python, setup.py", "-- setup.py --\nsetup(install_requires=[\"flask\"])\n-- app.py --\napp = Flask(__name__)\n", []string{"COPY --chown=10001:10001 . .\nRUN --mount=type=cache,target=/root/.cache/pip pip install ."}, []string{"there is a setup.py"}, "web:8080:"},
		{"python, setup.py beside settings of tools", "-- setup.py --\n-- pyproject.toml --\n[tool.ruff]\n-- main.py --\n", []string{"pip install .\n"}, []string{"leaves the dependencies to the build"}, ""},
		{"python, dynamic dependencies", "-- pyproject.toml --\n[project]\ndynamic = [\"version\", \"dependencies\"]\n-- main.py --\n", []string{"pip install .\n"}, nil, ""},
		{"python, pipenv", "-- Pipfile --\n[packages]\nflask = \"*\"\n-- Pipfile.lock --\n-- app.py --\n", []string{"pipenv requirements"}, nil, "web:8080:"},
		{"python, plain", "-- requirements.txt --\nrequests\n-- main.py --\n", []string{"exec python3 main.py"}, []string{"run by python"}, "web:8080:"},
		{"python, Procfile without web", "-- requirements.txt --\n-- Procfile --\nworker: python3 w.py\n", nil, nil, "worker::exec_python3_w.py"},
		{"python, packages", "-- requirements.txt --\n-- main.py --\n-- app.toml --\n[build]\npackages = [\"libpq5\", \"gcc\"]\n", []string{"apt-get install -y --no-install-recommends libpq5 gcc"}, nil, "web:8080:"},

		// Versions.
		{"python, version of app.toml", "-- requirements.txt --\n-- main.py --\n-- app.toml --\n[build]\nversion = \"3.13\"\n", []string{"FROM runtime/python:3.13\n"}, []string{"app.toml asks for Python 3.13"}, ""},
		{"python, .python-version", "-- requirements.txt --\n-- main.py --\n-- .python-version --\n# pyenv\n3.11.4\n", []string{"FROM runtime/python:3.11.4\n"}, []string{".python-version asks for Python 3.11.4"}, ""},
		{"python, runtime.txt", "-- requirements.txt --\n-- main.py --\n-- runtime.txt --\npython-3.12.1\n", []string{"FROM runtime/python:3.12.1\n"}, nil, ""},
		{"python, requires-python", "-- pyproject.toml --\n[project]\nrequires-python = \">=3.10\"\ndependencies = []\n-- main.py --\n", []string{"FROM runtime/python:3.10-\n"}, []string{"3.10 or later"}, ""},
		{"python, requires-python with a bound", "-- pyproject.toml --\n[project]\nrequires-python = \">=3.10,<3.13\"\n-- main.py --\n", []string{"FROM runtime/python:3.10-3.12\n"}, nil, ""},
		{"python, requires-python beside requirements.txt", "-- requirements.txt --\n-- pyproject.toml --\n[project]\nrequires-python = \"==3.12.*\"\n-- main.py --\n", []string{"FROM runtime/python:3.12\n"}, nil, ""},
		{"python, poetry's version", "-- pyproject.toml --\n[tool.poetry.dependencies]\npython = \"^3.11\"\n-- poetry.lock --\n-- main.py --\n", []string{"FROM runtime/python:3.11-\n"}, nil, ""},
		{"python, Pipfile's version", "-- Pipfile --\n[requires]\npython_version = \"3.13\"\n-- Pipfile.lock --\n-- main.py --\n", []string{"FROM runtime/python:3.13\n"}, nil, ""},
		{"python, no version", "-- requirements.txt --\n-- main.py --\n", []string{"FROM runtime/python\n"}, []string{"no version of Python is asked for"}, ""},

		{"python, build command", "-- requirements.txt --\n-- main.py --\n-- app.toml --\n[build]\ncommand = \"make assets\"\n", []string{"COPY --chown=10001:10001 . .\nENV PORT=8080\nUSER 10001:10001\nRUN make assets\n"}, []string{"make assets"}, ""},

		// Django.
		{"python, collectstatic", "-- requirements.txt --\ndjango\nwhitenoise\n-- manage.py --\nos.environ.setdefault('DJANGO_SETTINGS_MODULE', 'shop.settings')\n-- shop/wsgi.py --\n-- shop/settings.py --\nSTATIC_ROOT = BASE_DIR / 'x'\n-- app.toml --\n[env]\nA = \"1 2\"\n",
			[]string{"RUN A='1 2' SECRET_KEY=only-while-building DJANGO_SECRET_KEY=only-while-building python3 manage.py collectstatic --noinput\n"}, []string{"static files are collected", "!whitenoise is not"}, ""},
		{"python, collectstatic with a Procfile", "-- requirements.txt --\ndjango\n-- manage.py --\nos.environ.setdefault('DJANGO_SETTINGS_MODULE', 'shop.settings.prod')\n-- shop/wsgi.py --\n-- shop/settings/base.py --\nSTATIC_ROOT = 'x'\n-- shop/settings/prod.py --\nfrom .base import *\n-- Procfile --\nrelease: python manage.py migrate\nweb: gunicorn shop.wsgi\n",
			[]string{"collectstatic"}, []string{"whitenoise is not among the dependencies", "release command runs once"}, "web:8080:exec_gunicorn_shop.wsgi"},
		{"python, no STATIC_ROOT", "-- requirements.txt --\ndjango\n-- manage.py --\n-- shop/wsgi.py --\n-- shop/settings.py --\n", []string{"!collectstatic"}, []string{"not collected"}, ""},
		{"python, collectstatic is disabled", "-- requirements.txt --\ndjango\n-- manage.py --\n-- shop/wsgi.py --\n-- shop/settings.py --\nSTATIC_ROOT\n-- app.toml --\n[env]\nDISABLE_COLLECTSTATIC = \"1\"\n", []string{"!manage.py collectstatic"}, []string{"DISABLE_COLLECTSTATIC is set"}, ""},
		{"python, django among several packages", "-- requirements.txt --\ndjango\n-- manage.py --\nos.environ.setdefault(\"DJANGO_SETTINGS_MODULE\", \"zoo.settings\")\n-- apps/wsgi.py --\n-- zoo/wsgi.py --\n", []string{"zoo.wsgi"}, nil, ""},

		// Factories, packages, scripts.
		{"python, factory in a package", "-- requirements.txt --\nflask\n-- flaskr/__init__.py --\ndef create_app(test_config=None):\n    app = Flask(__name__)\n", []string{"'flaskr:create_app()'"}, []string{"create_app in flaskr/__init__.py makes a Flask app"}, ""},
		{"python, factory over several lines", "-- requirements.txt --\nflask\n-- shop/app.py --\ndef create_app(\n    config: dict[str, int] | None = None,\n    *, debug: bool = False,\n):\n    app = Flask(__name__)\n", []string{"'shop.app:create_app()'"}, nil, ""},
		{"python, object before factory", "-- requirements.txt --\nflask\n-- shop/__init__.py --\ndef create_app():\n    return Flask(__name__)\n-- wsgi.py --\napplication = Flask(__name__)\n", []string{"wsgi:application"}, nil, ""},
		{"python, factory of FastAPI", "-- requirements.txt --\nfastapi\n-- api/main.py --\ndef create_app() -> FastAPI:\n    return FastAPI()\n", []string{"--factory api.main:create_app"}, nil, ""},
		{"python, src layout", "-- requirements.txt --\nflask\n-- src/shop/__init__.py --\napp = Flask(__name__)\n", []string{"ENV PYTHONPATH=/app/src\n", "shop:app"}, nil, ""},
		{"python, src folder", "-- requirements.txt --\nfastapi\n-- src/main.py --\napp = FastAPI()\n", []string{"ENV PYTHONPATH=/app/src\n", " main:app"}, nil, ""},
		{"python, script", "-- pyproject.toml --\n[project]\nname = \"shop\"\ndependencies = [\"requests\"]\n[project.scripts]\nshop = \"shop.cli:main\"\n-- shop/cli.py --\n", []string{"pip install --no-deps .", "exec shop"}, []string{"has the script shop"}, ""},
		{"python, script of uv", "-- pyproject.toml --\n[project]\nname = \"shop\"\n[project.scripts]\nserve = \"shop:main\"\nother = \"shop:other\"\n[build-system]\n-- uv.lock --\n", []string{"uv sync --frozen --no-dev --no-editable", "exec serve"}, nil, ""},
		{"python, script of poetry", "-- pyproject.toml --\n[tool.poetry.scripts]\nshop = \"shop:main\"\n-- poetry.lock --\n", []string{"COPY --chown=10001:10001 . .\nRUN --mount=type=cache,target=/root/.cache/pip VIRTUAL_ENV=/opt/venv /opt/poetry/bin/poetry install"}, nil, ""},
		{"python, package that runs", "-- requirements.txt --\n-- shop/__main__.py --\n", []string{"exec python3 -m shop"}, nil, ""},
		{"python, dash", "-- requirements.txt --\ndash\n-- app.py --\napp = Dash(__name__)\n", []string{"app:app.server"}, nil, ""},
		{"python, streamlit", "-- requirements.txt --\nstreamlit\n-- app.py --\n", []string{"streamlit run --server.port $PORT"}, nil, ""},
		{"python, asked for without dependencies", "-- main.py --\n-- app.toml --\n[build]\nstack = \"python\"\n", []string{"!pip install", "python3 main.py"}, nil, ""},

		{"python, module that is compiled", "-- requirements.txt --\npsycopg2\n-- main.py --\n",
			[]string{"FROM runtime/python AS build\nRUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev libpq-dev python3-dev", "\nFROM runtime/python\nRUN apt-get update && apt-get install -y --no-install-recommends libpq5 ", "COPY --from=build /opt/venv /opt/venv"}, []string{"psycopg2: installed with gcc"}, ""},
		{"python, module from git", "-- requirements.txt --\nx @ git+https://example.com/x\n-- main.py --\n", []string{"ca-certificates git"}, nil, ""},
	})
}
