# Thin: every target calls CMake or a script under tools/. `make help` lists them.
PREFIX ?= /usr/local
DESTDIR ?=

.DEFAULT_GOAL := all
.PHONY: all test conformance demo bench lint format install clean help packages-build product

all: product ## build the program (release) into build/
	@if [ -x build/bin/muster ]; then echo "the program is build/bin/muster"; \
	else echo "built into build/"; fi

product: packages-build
	@cmake --preset release >/dev/null
	@cmake --build build --target product

packages-build:
	@tools/packages install build

test: ## install what the tests need, build everything, run every test
	@tools/packages install build test lint
	@tools/run_tests

conformance: product ## build, then run PyTorch's own RPC tests against muster.rpc
	@tools/packages install build test
	@tools/python_env >/dev/null
	@tests/conformance/run

demo: product ## build, then run an elastic job that loses a worker and a node
	@examples/demo

bench: ## build, then run every benchmark beside its peer
	@tools/packages install build bench
	@cmake --preset release >/dev/null
	@cmake --build build --target product benches
	@bench/run all

lint: ## check the rules that the compiler cannot
	@tools/lint

format: ## let clang-format rewrite our C++
	@tools/lint --format

install: product ## install into $(DESTDIR)$(PREFIX)
	@DESTDIR="$(DESTDIR)" cmake --install build --prefix "$(PREFIX)"

clean: ## remove everything that was built
	rm -rf build

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
